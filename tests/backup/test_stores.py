"""Folders and object stores hold a backup alike, and say in one sentence what is wrong with them."""

import errno
import os
import re
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from secrets import token_hex

import pytest

from quire.cluster.backup.object_store import Patience, check_conditional, open_store
from quire.cluster.backup.store import (
    TEMPORARY,
    FolderStore,
    Store,
    StoreDamaged,
    StoreFailed,
    StoreMissing,
    StoreRefused,
    StoreTaken,
)
from tests.backup.faulty_gateway import Fault, FaultyGateway, faulty_gateway
from tests.backup.gateway import BUCKET, MOST, QUICK, Gateway, options_for
from tests.ports import HOST, free_ports

HASTY = Patience(connect_s=2.0, request_s=0.5, retry_s=1.0, retries=1)


class Died(BaseException):
    """A process that is killed."""


@pytest.fixture(params=["folder", pytest.param("gateway", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return FolderStore(tmp_path / "b")
    gateway: Gateway = request.getfixturevalue("gateway")
    return open_store(f"s3://{BUCKET}/{token_hex(4)}", gateway.options, QUICK)


def test_what_is_put_is_got_listed_and_deleted(store: Store) -> None:
    store.put("frames/a", b"one")
    store.put("frames/a", b"two")
    store.put("snapshots/1/manifest", b"three")

    assert store.get("frames/a", MOST) == b"two"
    listed = store.list("frames/")
    assert {key: each.size for key, each in listed.items()} == {"frames/a": 3}
    assert listed["frames/a"].modified > 1_700_000_000
    assert list(store.list("snapshots/")) == ["snapshots/1/manifest"]
    assert store.list("nothing/") == {}
    store.delete(["frames/a", "frames/never"])
    store.delete([])
    with pytest.raises(StoreMissing, match="frames/a is not in"):
        store.get("frames/a", MOST)
    assert store.list("frames/") == {}


def test_a_key_is_created_once(store: Store) -> None:
    store.create("manifests/1", b"first")

    with pytest.raises(StoreTaken):
        store.create("manifests/1", b"second")

    assert store.get("manifests/1", MOST) == b"first"
    assert len(store.list("manifests/")) == 1
    check_conditional(store)
    assert store.list("probe/") == {}


def test_a_large_object_comes_back_whole(store: Store) -> None:
    data = os.urandom(33 << 20)

    store.put("frames/large", data)

    assert store.get("frames/large", MOST) == data


def test_an_object_that_is_larger_than_what_was_written_is_not_read(store: Store) -> None:
    store.put("frames/a", b"12345")

    assert store.get("frames/a", 5) == b"12345"
    with pytest.raises(StoreDamaged, match=r"frames/a in .* is damaged: it has 5 bytes, and 4 at most were written"):
        store.get("frames/a", 4)


# Folders


def test_a_folder_s_files_are_named_only_when_they_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    order = FolderStore(tmp_path)
    sync, rename = os.fsync, Path.rename

    def noted_sync(descriptor: int) -> None:
        synced.append("sync")
        sync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        synced.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    order.put("frames/a", b"one")

    # The two new folders, the file, its name, the folder that has the name.
    assert synced == ["sync", "sync", "rename", "sync"]


def test_a_full_disk_leaves_nothing_behind_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "frames").mkdir()
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(StoreFailed, match="frames/a cannot be written: no space left on device"):
        FolderStore(tmp_path).put("frames/a", b"one")

    assert list((tmp_path / "frames").iterdir()) == []


def test_a_file_that_cannot_be_named_is_removed(tmp_path: Path) -> None:
    (tmp_path / "frames" / "a").mkdir(parents=True)

    with pytest.raises(StoreFailed, match="frames/a cannot be written: is a directory"):
        FolderStore(tmp_path).put("frames/a", b"one")

    assert [path.name for path in (tmp_path / "frames").iterdir()] == ["a"]


@pytest.mark.parametrize("method", ["put", "create"])
def test_a_writer_that_dies_before_a_file_is_named_leaves_a_temporary_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def die(*_: object) -> None:
        raise Died

    store = FolderStore(tmp_path)
    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, die)
    monkeypatch.setattr(os, "link", die)

    with pytest.raises(Died):
        getattr(store, method)("frames/a", b"one")

    assert [key.endswith(TEMPORARY) for key in store.list("frames/")] == [True]
    with pytest.raises(StoreMissing):
        store.get("frames/a", MOST)


def test_a_folder_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(_: object, __: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)

    with pytest.raises(StoreRefused, match="has no hard links, by which two writers are told apart; choose another"):
        check_conditional(FolderStore(tmp_path))


def test_a_file_that_is_a_link_is_damage_and_a_folder_may_be_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "one").write_bytes(b"x")
    store = FolderStore(tmp_path / "b")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "frames").symlink_to(tmp_path / "elsewhere")
    assert store.get("frames/one", 1) == b"x"
    (tmp_path / "b" / "one").symlink_to(tmp_path / "elsewhere" / "one")
    with pytest.raises(StoreDamaged, match="it is not a regular file"):
        store.get("one", 1)


def test_a_file_where_a_folder_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("a file")

    with pytest.raises(StoreFailed, match=r"b/frames/a cannot be written: (not a directory|file exists)"):
        FolderStore(tmp_path / "b").put("frames/a", b"one")
    with pytest.raises(StoreFailed, match="cannot be listed: not a directory"):
        FolderStore(tmp_path / "b").list("frames/")


# What a store is called


@pytest.mark.parametrize(
    ("url", "options", "sentence"),
    [
        ("ftp://host/x", {}, r"ftp://host/x is no place for a backup; give a folder, or s3://BUCKET/PREFIX"),
        ("s3:/b/x", {}, "is no place for a backup"),
        ("s3://[b/x", {}, "no place for a backup: invalid ipv6 url; give a folder"),
        ("", {}, "names no folder"),
        ("file://host/b", {}, "names no folder, such as /srv/backup or file:///srv/backup"),
        ("file://", {}, "names no folder"),
        ("/tmp/b", {"region": "x"}, "a folder has no options such as 'region'; leave out --store-option"),
        ("s3://", {}, "s3:// cannot be opened"),
        ("s3://b/x", {"bogus": "hunter2hunter2"}, "s3://b/x cannot be opened with the options bogus: .*'bogus'"),
        ("s3://b/x", {"conditional_put": "hunter2hunter2"}, "with the options conditional_put: Failed to parse"),
        ("s3://b/x", {"allow_http": "perhaps"}, "with the options allow_http"),
        ("s3://b/x", {"timeout": "soon"}, "with the options timeout"),
        (
            "s3://b/x",
            {"endpoint": "hunter2"},
            "s3://b/x cannot be opened: endpoint is no URL such as https://host:port",
        ),
        ("s3://b/x", {"session_token": "hunter2\n"}, "session_token has a space or a line break in it; remove it"),
        ("az://b/x", {}, "az://b/x cannot be opened: .*Account must be specified"),
    ],
)
def test_a_place_that_is_none_and_an_unknown_option_are_refused_in_one_line(
    url: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(StoreRefused, match=sentence) as caught:
        open_store(url, options)

    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_panic_of_the_library_is_an_error_of_the_store() -> None:
    store = open_store("s3://b/x", {**options_for(1), "endpoint": "http://no url"}, HASTY)

    with pytest.raises(StoreRefused, match=r"s3://b/x: obstore failed .*; check its options and variables"):
        store.get("frames/a", MOST)


@pytest.mark.parametrize(
    ("url", "variable", "value", "sentence"),
    [
        ("s3://b/x", "AWS_ENDPOINT_URL", "hunter2", "AWS_ENDPOINT_URL is no URL"),
        ("s3://b/x", "AWS_SECRET_ACCESS_KEY", "hunter2\n", "AWS_SECRET_ACCESS_KEY has a space or a line break"),
        ("s3://b/x", "AWS_ENDPOINT_URL_S3", "", "AWS_ENDPOINT_URL_S3 is no URL"),
    ],
)
def test_a_variable_that_the_library_would_panic_at_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(StoreRefused, match=sentence) as caught:
        open_store(url, {})

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("variable", ["AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "AWS_USE_FIPS_ENDPOINT"])
def test_variables_that_are_no_endpoints_are_left_alone(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "IPv4")

    assert open_store("s3://b/x", options_for(1)).name == "s3://b/x"


def test_credentials_in_a_url_are_not_shown() -> None:
    assert open_store("s3://key:secret@b/x?token=secret", options_for(1)).name == "s3://b/x"


def test_a_signature_in_a_request_s_url_is_not_shown() -> None:
    (port,) = free_ports(1)
    options = {"account_name": "a", "sas_key": "sv=2020-01-01&sig=hunter2", "endpoint": f"http://{HOST}:{port}"}

    with pytest.raises(StoreFailed, match="az://b/x failed: GET REDACTED: ") as caught:
        open_store("az://b/x", options, HASTY).get("frames/a", MOST)

    assert "hunter2" not in str(caught.value)


# Object stores that fail

Call = Callable[[Store], object]
CALLS: dict[str, Call] = {
    "get": lambda store: store.get("frames/a", MOST),
    "put": lambda store: store.put("frames/a", b"one"),
    "create": lambda store: store.create("frames/a", b"one"),
    "list": lambda store: store.list("frames/"),
    "delete": lambda store: store.delete(["frames/a"]),
}


@pytest.fixture
def faulty(gateway: Gateway) -> Generator[FaultyGateway]:
    with faulty_gateway(gateway) as proxy:
        yield proxy


def through(proxy: FaultyGateway, patience: Patience = QUICK, **options: str) -> Store:
    return open_store(f"s3://{BUCKET}/{token_hex(4)}", {**options_for(proxy.port), **options}, patience)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_wrong_credentials_are_refused_with_what_to_do(gateway: Gateway, call: Call) -> None:
    wrong = open_store(gateway.url, {**gateway.options, "secret_access_key": "hunter2"}, QUICK)

    with pytest.raises(StoreRefused, match=r"refuses the credentials \(SignatureDoesNotMatch\); set its credentials"):
        call(wrong)


@pytest.mark.slow
def test_an_unknown_key_is_said_with_the_store_s_answer(gateway: Gateway) -> None:
    with pytest.raises(StoreFailed, match="s3://backups/lab failed: XAdminUserNotFound"):
        open_store(gateway.url, {**gateway.options, "access_key_id": "nobody"}, QUICK).get("frames/a", MOST)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_bucket_that_is_not_there_is_said(gateway: Gateway, call: Call) -> None:
    with pytest.raises(StoreRefused, match="s3://elsewhere/x does not exist: create the bucket first"):
        call(open_store("s3://elsewhere/x", gateway.options, QUICK))


@pytest.mark.slow
def test_without_credentials_the_wait_for_the_machine_s_own_is_short_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    with socket.create_server((HOST, 0)) as silent:
        options = {"region": "r", "metadata_endpoint": f"http://{HOST}:{silent.getsockname()[1]}"}
        with pytest.raises(StoreRefused, match="s3://b/x: no credentials were found in the environment; set them"):
            open_store("s3://b/x", options, HASTY).get("frames/a", MOST)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_gateway_that_accepts_and_says_nothing_is_given_up(call: Call) -> None:
    with (
        socket.create_server((HOST, 0)) as silent,
        pytest.raises(StoreFailed, match="s3://backups/x failed: ") as caught,
    ):
        call(open_store(f"s3://{BUCKET}/x", options_for(silent.getsockname()[1]), HASTY))

    assert "\n" not in str(caught.value)


def test_a_gateway_that_is_down_is_said_in_one_line() -> None:
    (port,) = free_ports(1)
    store = open_store(f"s3://{BUCKET}/x", options_for(port), HASTY)

    with pytest.raises(StoreFailed, match=re.escape(f"{HOST}:{port}")) as caught:
        store.get("frames/a", MOST)

    assert "\n" not in str(caught.value)


PASSING = [
    *(Fault.REFUSED, Fault.UNANSWERED, Fault.CUT, Fault.HALTED),
    *(pytest.param(fault, marks=pytest.mark.full) for fault in (Fault.DROPPED, Fault.STALLED)),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_is_survived_and_one_that_stays_is_said(faulty: FaultyGateway, fault: Fault) -> None:
    store = through(faulty, HASTY._replace(retries=3, retry_s=20.0))
    store.put("frames/a", b"one" * 1000)
    began = len(faulty.requests)
    faulty.choose = lambda number, method, path: fault if number == began else Fault.NONE
    assert store.get("frames/a", MOST) == b"one" * 1000

    faulty.choose = lambda number, method, path: fault
    for name in ("get", "list"):
        with pytest.raises(StoreFailed, match="failed: ") as caught:
            CALLS[name](store)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_store_that_is_out_of_order_is_said_with_its_answer(faulty: FaultyGateway, call: Call) -> None:
    faulty.choose = lambda number, method, path: Fault.REFUSED

    with pytest.raises(StoreFailed, match=r"s3://backups/.* failed: SlowDown$"):
        call(through(faulty, HASTY))


@pytest.mark.slow
def test_a_create_whose_answer_was_lost_finds_its_own_object(faulty: FaultyGateway) -> None:
    store = through(faulty)
    began = len(faulty.requests)
    faulty.choose = lambda number, method, path: Fault.UNANSWERED if number == began else Fault.NONE

    with pytest.raises(StoreTaken):
        store.create("manifests/1", b"mine")

    assert store.get("manifests/1", MOST) == b"mine"


@pytest.mark.slow
def test_a_store_that_replaces_what_it_was_asked_to_create_is_refused(faulty: FaultyGateway) -> None:
    faulty.choose = lambda number, method, path: Fault.REPLACED

    with pytest.raises(StoreRefused, match="two writers could not be told apart; choose another store"):
        check_conditional(through(faulty))


@pytest.mark.slow
def test_a_store_that_does_not_know_the_condition_is_refused(faulty: FaultyGateway) -> None:
    faulty.choose = lambda number, method, path: Fault.LACKING if method == "PUT" else Fault.NONE

    with pytest.raises(StoreRefused, match="has no conditional put, by which two writers are told apart"):
        check_conditional(through(faulty, HASTY))


@pytest.mark.slow
def test_a_probe_whose_answer_was_lost_is_no_conflict(faulty: FaultyGateway) -> None:
    store = through(faulty)
    faulty.choose = lambda number, method, path: Fault.UNANSWERED if number == 0 else Fault.NONE

    check_conditional(store)

    assert [method for method, _ in faulty.requests] == ["PUT", "PUT", "PUT", "POST"]
    assert store.list("probe/") == {}


@pytest.mark.slow
def test_a_probe_that_fails_leaves_nothing_behind(faulty: FaultyGateway) -> None:
    store = through(faulty, HASTY._replace(retries=0))
    faulty.choose = lambda number, method, path: Fault.REFUSED if number == 1 else Fault.NONE

    with pytest.raises(StoreFailed, match="SlowDown"):
        check_conditional(store)

    assert store.list("probe/") == {}


def test_without_obstore_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)

    with pytest.raises(StoreRefused, match=r"run pip install 'quire\[backup\]'"):
        open_store("s3://b/x", {})
