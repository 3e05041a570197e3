"""The name that a caller dials, found in the first bytes that it sends."""

import ssl
from collections.abc import Iterator

import pytest

from quire.cluster.http.admission.client_hello import HANDSHAKE, MAX_EXTENSIONS, MAX_RECORDS, dialled_name

NAME = "n1.shop.quire"


def hello_to(name: str | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = version
    context.set_alpn_protocols(["http/1.1"])
    sent = ssl.MemoryBIO()
    end = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        end.do_handshake()
    return sent.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same message in records of this size."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


def without_its_end(message: bytes) -> Iterator[bytes]:
    return (message[:length] for length in range(len(message)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_is_found_whatever_else_the_caller_offers(version: ssl.TLSVersion) -> None:
    assert dialled_name(hello_to(NAME, version)) == NAME
    assert dialled_name(hello_to("N1.Shop.Quire", version)) == NAME, "names are the same in capitals"
    assert dialled_name(hello_to(None, version)) == ""


@pytest.mark.parametrize("size", [40, 100, 1000])
def test_a_hello_in_several_records_is_one_hello(size: int) -> None:
    assert dialled_name(in_records(hello_to(NAME), size)) == NAME


def test_of_a_hello_that_is_not_whole_more_must_arrive() -> None:
    for hello in (hello_to(NAME), in_records(hello_to(NAME), 40)):
        assert all(dialled_name(part) is None for part in without_its_end(hello))


def test_what_follows_the_hello_does_not_matter() -> None:
    assert dialled_name(hello_to(NAME) + b"\x17\x03\x03") == NAME


def test_of_no_damaged_hello_more_is_said_than_of_one_without_a_name() -> None:
    hello = hello_to(NAME)
    for at in range(len(hello)):
        for byte in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(hello)
            damaged[at] = byte
            dialled_name(bytes(damaged))  # It raises nothing, and it ends.
    for kind in (0, 2, 20, 255):
        assert dialled_name(bytes([HANDSHAKE, 3, 1, 0, 4, kind, 0, 0, 0])) == ""
    assert dialled_name(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00") == ""


def test_a_hello_in_many_empty_records_is_left_to_openssl() -> None:
    """A stranger could have thousands of them looked at again and again."""
    empty = bytes([HANDSHAKE, 3, 1, 0, 0])
    begun = bytes([HANDSHAKE, 3, 1, 0, 4, 1, 0, 0xFF, 0xFF])

    assert dialled_name(begun + (MAX_RECORDS - 2) * empty) is None
    assert dialled_name(begun + MAX_RECORDS * empty) == ""


def test_a_name_behind_many_extensions_is_left_to_openssl() -> None:
    name = b"n1.shop.quire"
    named = b"\0\0" + (len(name) + 5).to_bytes(2) + (len(name) + 3).to_bytes(2) + b"\0" + len(name).to_bytes(2) + name
    for before, found in ((MAX_EXTENSIONS - 1, name.decode()), (MAX_EXTENSIONS, "")):
        extensions = before * b"\xff\x01\0\0" + named
        hello = bytes(2 + 32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + len(extensions).to_bytes(2) + extensions
        message = b"\1" + len(hello).to_bytes(3) + hello
        assert dialled_name(bytes([HANDSHAKE, 3, 1]) + len(message).to_bytes(2) + message) == found
