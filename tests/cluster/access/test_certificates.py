"""Certificates as `quire certs` makes them: what they are good for, what is refused, and how a CA is replaced."""

import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID

from quire.cluster.access.certificates import (
    MAX_HOSTS,
    CertificatesRefused,
    add_ca,
    make_ca,
    make_node,
    retire_ca,
    show,
)
from quire.cluster.access.tls import TlsFiles, TlsRefused, load_client_tls, load_tls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the CA of the cluster prod, and n1's certificate."""
    make_ca(tmp_path / "ca", "prod")
    make_node(tmp_path / "ca", "n1")
    return tmp_path / "ca"


def certificates(file: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(file.read_bytes())


def files_of(folder: Path, node: str, ca: Path | None = None) -> TlsFiles:
    return TlsFiles(folder / f"{node}.crt", folder / f"{node}.key", ca or folder / "ca.crt")


def copied(file: Path, name: str) -> Path:
    copy = file.with_name(name)
    copy.write_bytes(file.read_bytes())
    return copy


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def meet(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str | None:
    """Why two contexts refuse each other; None if they do not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for end in ends * 2:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return None


# What is made


def test_a_node_and_its_ca_are_accepted_by_both_ends_under_every_name(folder: Path) -> None:
    make_node(folder, "n1", ["db.example.org", "localhost", "127.0.0.1", "::1", "DB.example.org"])
    make_node(folder, "n2")
    one, two = load_tls(files_of(folder, "n1"), "n1"), load_tls(files_of(folder, "n2"), "n2")
    client = load_client_tls(folder / "ca.crt")
    assert (one.cluster, client.server_name) == ("prod", "prod.quire")
    for context in (client.context, two.dialling, one.peers, two.peers):
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # The default from Python 3.13 on.

    names = ["n1.prod.quire", "prod.quire", "db.example.org", "localhost", "127.0.0.1", "::1"]
    assert [meet(client.context, one.clients, name) for name in names] == [None] * 6
    assert meet(two.dialling, one.peers, "n1.prod.quire") is None
    for name in ("n2.prod.quire", "quire", "n1", "example.org"):
        assert "mismatch" in (meet(client.context, one.clients, name) or "")


def test_a_cas_and_a_nodes_certificate_say_what_they_are_for(folder: Path) -> None:
    (ca,), (node,) = certificates(folder / "ca.crt"), certificates(folder / "n1.crt")

    assert ca.subject.rfc4514_string() == "CN=prod,O=quire"
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert node.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(False, None)
    usages = [each.extensions.get_extension_for_class(x509.KeyUsage).value for each in (ca, node)]
    assert [(usage.key_cert_sign, usage.digital_signature) for usage in usages] == [(True, False), (False, True)]
    ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert list(node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == ends
    for each in (ca, node):
        key = each.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert key.curve.name == "secp256r1"
        assert isinstance(each.signature_hash_algorithm, SHA256)
        node.verify_directly_issued_by(ca)


def test_a_certificate_is_valid_from_a_day_ago_for_its_days(folder: Path) -> None:
    make_node(folder, "n2", days=30)
    now = datetime.now(UTC)
    for name, days in (("ca", 3650), ("n1", 365), ("n2", 30)):
        (each,) = certificates(folder / f"{name}.crt")
        assert abs(each.not_valid_before_utc - (now - timedelta(days=1))) < timedelta(minutes=10)
        assert abs(each.not_valid_after_utc - (now + timedelta(days=days))) < timedelta(minutes=10)


def test_no_nodes_certificate_outlives_its_ca(tmp_path: Path) -> None:
    make_ca(tmp_path, "prod", days=10)
    make_node(tmp_path, "n1")
    (ca,), (node,) = certificates(tmp_path / "ca.crt"), certificates(tmp_path / "n1.crt")
    assert node.not_valid_after_utc == ca.not_valid_after_utc


def test_an_expired_ca_signs_nothing(tmp_path: Path) -> None:
    make_ca(tmp_path, "prod", days=0)
    with pytest.raises(CertificatesRefused, match=r"the CA expired at .*quire certs init DIR --cluster prod --next"):
        make_node(tmp_path, "n1")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_keys_are_for_their_owner_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(0o077)
    try:
        make_ca(tmp_path / "ca", "prod")
        os.umask(umask)
        make_node(tmp_path / "ca", "n1")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ca").iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "n1.crt": 0o644, "n1.key": 0o600}
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


# What is refused


@pytest.mark.parametrize("cluster", ["", "Prod", "a.b", "-a", "a-", "a" * 64, "a_b", "ä", "a\n"])
def test_a_clusters_name_is_one_dns_label(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(CertificatesRefused, match="not one DNS label: use 1 to 63 of"):
        make_ca(tmp_path / "ca", cluster)
    assert not (tmp_path / "ca").exists()


def test_the_longest_names_fit(tmp_path: Path) -> None:
    cluster, node = "c" * 63, "n" * 24
    make_ca(tmp_path, cluster)
    make_node(tmp_path, node)
    tls = load_tls(files_of(tmp_path, node), node)
    assert (tls.cluster, tls.node_id) == (cluster, node)
    assert meet(tls.dialling, tls.peers, tls.node_name) is None


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("", "node's id"),
        ("n" * 25, "node's id"),
        ("../n", "node's id"),
        ("n.1", "node's id"),
        ("-n1", "node's id"),
        ("ca", "CA's own"),
    ],
)
def test_a_node_id_that_is_none_or_that_the_ca_uses_is_refused(folder: Path, node: str, why: str) -> None:
    before = content(folder)
    with pytest.raises(CertificatesRefused, match=why):
        make_node(folder, node)
    assert content(folder) == before


@pytest.mark.parametrize(
    "host",
    [
        *("", "a b", "a..b", "-a.org", "a-.org", "ä.org", "a" * 254, "a:7001", "[::1]", "fe80::1%eth0", "*.a.org"),
        *("1.2.3", "127.0.0.256", "http://a", "a/b"),
    ],
)
def test_a_host_that_is_neither_a_name_nor_an_address_is_refused(folder: Path, host: str) -> None:
    with pytest.raises(CertificatesRefused, match=r"--host .* is neither a DNS name nor an IP address"):
        make_node(folder, "n1", ["ok.org", host])


@pytest.mark.parametrize("host", ["n2.prod.quire", "other.quire", "N2.prod.QUIRE", "quire"])
def test_a_host_cannot_be_another_nodes_or_clusters_name(folder: Path, host: str) -> None:
    with pytest.raises(CertificatesRefused, match=r"names that end in .quire are given by the CA alone"):
        make_node(folder, "n1", [host])


def test_as_many_hosts_as_the_limit_are_accepted_and_one_more_is_refused(folder: Path) -> None:
    assert len(make_node(folder, "n1", [f"h{each}" for each in range(MAX_HOSTS)])) == MAX_HOSTS + 2
    with pytest.raises(CertificatesRefused, match="101 hosts were given, above the limit of 100"):
        make_node(folder, "n1", [f"h{each}" for each in range(MAX_HOSTS + 1)])


@pytest.mark.parametrize("there", ["ca.crt", "ca.key"])
def test_a_new_ca_replaces_nothing(folder: Path, there: str) -> None:
    for name in {"ca.crt", "ca.key"} - {there}:
        (folder / name).unlink()
    before = content(folder)
    with pytest.raises(CertificatesRefused, match=f"{there} exists: use another folder, or .* --next"):
        make_ca(folder, "prod")
    assert content(folder) == before


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("no ca.crt", "ca.crt cannot be read: no such file"),
        ("no ca.key", "ca.key cannot be read: no such file .*where the CA's key is kept"),
        ("ca.crt cut off", "ca.crt holds no certificate, or a part of one"),
        ("ca.key cut off", "ca.key is no key, is cut off or has a password"),
        ("ca.crt empty", "ca.crt holds no certificate"),
        ("another ca.key", "ca.key is not the key of a CA in"),
        ("a node's ca.crt", "ca.crt does not hold the CAs of one cluster"),
        ("two clusters", "ca.crt does not hold the CAs of one cluster"),
        ("a part of a second CA", "ca.crt holds no certificate, or a part of one"),
    ],
)
def test_a_damaged_ca_signs_nothing_and_is_not_replaced(folder: Path, tmp_path: Path, damage: str, why: str) -> None:
    make_ca(tmp_path / "other", "other")
    what, _, how = damage.partition(" ")
    if what == "no":
        (folder / how).unlink()
    elif how == "cut off":
        (folder / what).write_bytes((folder / what).read_bytes()[:-60])
    elif how == "empty":
        (folder / what).write_bytes(b"")
    elif damage == "another ca.key":
        (folder / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    elif damage == "a node's ca.crt":
        (folder / "ca.crt").write_bytes((folder / "n1.crt").read_bytes())
    else:
        other = (tmp_path / "other" / "ca.crt").read_bytes()
        with (folder / "ca.crt").open("ab") as file:
            file.write(other if damage == "two clusters" else other[:-60])
    before = content(folder)

    for change in (lambda: make_node(folder, "n2"), lambda: add_ca(folder, "prod"), lambda: retire_ca(folder)):
        with pytest.raises(CertificatesRefused, match=why):
            change()
    assert content(folder) == before


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for change in (
        lambda: make_ca(tmp_path / "file", "prod"),
        lambda: make_node(tmp_path / "none", "n1"),
        lambda: retire_ca(tmp_path / "none"),
    ):
        with pytest.raises(CertificatesRefused, match=r"cannot be used: .*check that it exists and that you may write"):
            change()


# Replacing


def test_a_renewed_certificate_has_a_new_key_and_keeps_hosts_unless_others_are_given(folder: Path) -> None:
    make_node(folder, "n1", ["a.org", "10.0.0.1"])
    before = content(folder)
    assert make_node(folder, "n1") == ["n1.prod.quire", "prod.quire", "a.org", "10.0.0.1"]
    after = content(folder)
    assert before["n1.key"] != after["n1.key"]
    assert before["ca.crt"] == after["ca.crt"]
    load_tls(files_of(folder, "n1"), "n1")
    assert make_node(folder, "n1", ["b.org"]) == ["n1.prod.quire", "prod.quire", "b.org"]


def test_a_file_of_another_node_is_not_renewed(folder: Path) -> None:
    copied(folder / "n1.crt", "n2.crt")
    with pytest.raises(
        CertificatesRefused, match=r"n2.crt exists and is not for n2.prod.quire; move it and its key away"
    ):
        make_node(folder, "n2")


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_an_interrupted_command_leaves_the_old_files(folder: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync", full) if step == "fsync" else (Path, "rename", full)))
    for change in (
        lambda: make_node(folder, "n1"),
        lambda: make_node(folder, "n2"),
        lambda: add_ca(folder, "prod"),
        lambda: make_ca(folder.parent / "new", "new"),
    ):
        with pytest.raises(CertificatesRefused, match="no space left on device"):
            change()
    assert content(folder) == before
    assert content(folder.parent / "new") == {}


class Killed(BaseException):
    """The process ends here."""


def kill_after(renames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so many files be renamed, then raise."""
    rename, left = Path.rename, [renames]

    def renamed(path: Path, target: Path) -> Path:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)


def test_a_pair_of_which_one_file_was_replaced_is_refused_and_the_command_repairs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_after(1, patch)
        with pytest.raises(Killed):
            make_node(folder, "n1")
    with pytest.raises(TlsRefused, match="is not the key of that certificate"):
        load_tls(files_of(folder, "n1"), "n1")

    make_node(folder, "n1")
    load_tls(files_of(folder, "n1"), "n1")


def test_a_ca_is_replaced_while_old_and_new_certificates_meet(folder: Path) -> None:
    make_node(folder, "n2")
    only_old = copied(folder / "ca.crt", "only-old.pem")
    add_ca(folder, "prod")
    both = copied(folder / "ca.crt", "both.pem")
    old_two = load_tls(files_of(folder, "n2"), "n2")  # Signed by the old CA, trusts both.
    make_node(folder, "n1")
    new_one = load_tls(files_of(folder, "n1"), "n1")

    assert meet(old_two.dialling, new_one.peers, "n1.prod.quire") is None
    assert meet(new_one.dialling, old_two.peers, "n2.prod.quire") is None
    assert meet(load_client_tls(both).context, new_one.clients, "prod.quire") is None
    # This is why ca.crt goes everywhere first.
    assert "unable to get" in (meet(load_client_tls(only_old).context, new_one.clients, "prod.quire") or "")

    with pytest.raises(
        CertificatesRefused, match=r"n2.crt is not signed by the newest CA: run `quire certs node .* n2`"
    ):
        retire_ca(folder)
    assert len(certificates(folder / "ca.crt")) == 2
    make_node(folder, "n2")
    assert retire_ca(folder) == 1
    assert retire_ca(folder) == 0
    (newest,) = certificates(folder / "ca.crt")
    assert newest == certificates(both)[0]
    new_two = load_tls(files_of(folder, "n2"), "n2")
    assert meet(new_two.dialling, new_one.peers, "n1.prod.quire") is None
    assert "unable to get" in (meet(load_client_tls(folder / "ca.crt").context, old_two.clients, "prod.quire") or "")


def test_a_second_replacement_waits_for_the_first_and_another_cluster_has_its_own_folder(folder: Path) -> None:
    with pytest.raises(CertificatesRefused, match=r"ca.crt is of the cluster prod, not test"):
        add_ca(folder, "test")
    add_ca(folder, "prod")
    with pytest.raises(
        CertificatesRefused, match=r"holds 2 CAs already: finish that replacement with `quire certs node"
    ):
        add_ca(folder, "prod")


def test_a_replacement_that_was_killed_between_its_files_is_undone_and_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = certificates(folder / "ca.crt")
    with monkeypatch.context() as patch:
        kill_after(1, patch)
        with pytest.raises(Killed):
            add_ca(folder, "prod")
    assert len(certificates(folder / "ca.crt")) == 2  # The new CA has no key.

    make_node(folder, "n1")
    load_tls(files_of(folder, "n1"), "n1")
    assert retire_ca(folder) == 1
    assert certificates(folder / "ca.crt") == before
    add_ca(folder, "prod")
    make_node(folder, "n1")
    assert retire_ca(folder) == 1


# Showing


def test_certificates_are_shown_with_what_they_are_for(folder: Path) -> None:
    make_node(folder, "n1", ["a.org", "::1"], days=30)
    add_ca(folder, "prod")

    rows = show(folder)

    assert [(row.file, row.purpose) for row in rows] == [
        ("ca.crt", "CA of the cluster prod"),
        ("ca.crt", "CA of the cluster prod"),
        ("n1.crt", "node n1 of the cluster prod"),
    ]
    assert rows[2].names == ["n1.prod.quire", "prod.quire", "a.org", "::1"]
    assert (rows[2].days_left, rows[2].expires[-1]) == (29, "Z")
    assert rows[2].signed_by == rows[1].signed_by != rows[0].signed_by
    assert [row.file for row in show(folder / "n1.crt")] == ["n1.crt"]


def test_an_expired_certificate_is_shown_as_one(tmp_path: Path) -> None:
    make_ca(tmp_path, "prod", days=0)
    assert [row.days_left for row in show(tmp_path)] == [-1]


@pytest.mark.parametrize("file", ["n1.key", "none.crt", "ca"])
def test_what_holds_no_certificate_is_not_shown(folder: Path, file: str) -> None:
    (folder / "ca").mkdir()
    with pytest.raises(CertificatesRefused, match=f"{file} (holds no|cannot be read)"):
        show(folder / file)
