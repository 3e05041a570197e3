"""Bytes that are not valid HTTP, or not a valid WebSocket; and headers of any bytes."""

import struct
from collections.abc import Iterator

from quire.log import pack
from tests.cluster.malformed.case import OnStream, Raw

HEAD = b"POST /commands HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /index_bounds HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"commands": [["add", 0]]}'
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
HANDSHAKE = (
    b"GET /commands/stream?session=%s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = b"\x01\x02\x03\x04"
CONTINUED, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9


def wrong(says: str, *pieces: bytes) -> Raw:
    """Input that cannot be read as HTTP."""
    return Raw(says, pieces, 400, "malformed")


def sized(length: bytes) -> bytes:
    return HEAD + b"Content-Length: " + length + b"\r\n\r\n" + BODY


def target(path: bytes, status: int = 400, problem: str = "malformed") -> Raw:
    says = f"`GET {path.decode('latin-1')}`".replace("\xff", "\\xff")
    return Raw(says, (b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",), status, problem)


def header(says: str, line: bytes) -> Raw:
    return wrong(says, GET + line + b"\r\n\r\n")


def host(name: bytes) -> Raw:
    return Raw(f"`Host: {name.decode()}`", (GET.replace(b"localhost", name) + b"\r\n",), 403, "host-refused")


def page(line: bytes) -> Raw:
    return Raw(f"`{line.decode()}`", (GET + line + b"\r\n\r\n",), 403, "origin-refused")


def shaken(old: bytes, new: bytes) -> bytes:
    return (HANDSHAKE % b"1").replace(old, new)


BODIES = [
    wrong("`Content-Length: -1`", sized(b"-1")),
    wrong("`Content-Length: ten`", sized(b"ten")),
    wrong("`Content-Length: 1.5`", sized(b"1.5")),
    wrong("`Content-Length: +26`", sized(b"+26")),
    wrong("`Content-Length: 0x1a`", sized(b"0x1a")),
    wrong("`Content-Length:` without a value", sized(b"")),
    wrong("`Content-Length:` of 23 digits", sized(b"9" * 23)),
    wrong("`Content-Length: 26` twice", sized(b"26\r\nContent-Length: 26")),
    wrong("`Content-Length: 26` and `Content-Length: 3`", sized(b"26\r\nContent-Length: 3")),
    wrong("`Content-Length` and `Transfer-Encoding: chunked`", sized(b"26\r\nTransfer-Encoding: chunked")),
    wrong("`Transfer-Encoding: banana`", HEAD + b"Transfer-Encoding: banana\r\n\r\n" + BODY),
    wrong("a chunk of `zz` bytes", CHUNKED + b"zz\r\n"),
    wrong("a chunk of `-5` bytes", CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    wrong("a chunk of more than 2^64 bytes", CHUNKED + b"f" * 18 + b"\r\n{"),
    wrong("a chunk that is longer than its size", CHUNKED + b"2\r\n{}xx0\r\n\r\n"),
    Raw("a chunked body of 1 MiB and a byte", (CHUNKED, b"100001\r\n" + bytes((1 << 20) + 1)), 413, "limit-exceeded"),
    Raw("`Content-Length` of 9 EiB", (HEAD + b"Content-Length: 9223372036854775807\r\n\r\n",), 413, "limit-exceeded"),
]

LINES = [
    wrong("`NONSENSE`", b"NONSENSE\r\n\r\n"),
    wrong("four bytes of binary", b"\x00\x01\x02\x03\r\n\r\n"),
    wrong("the first bytes of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50)),
    wrong("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    wrong("the version `HTTP/9.9`", b"GET /index_bounds HTTP/9.9\r\nHost: localhost\r\n\r\n"),
    wrong("the version `HTTP/1.1x`", b"GET /index_bounds HTTP/1.1x\r\nHost: localhost\r\n\r\n"),
    wrong("the method `G@T`", b"G@T /index_bounds HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("the method `get`", b"get /index_bounds HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("the method `BREW`", b"BREW /index_bounds HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("line feeds without carriage returns", b"GET /index_bounds HTTP/1.1\nHost: localhost\n\n"),
    wrong("a path with a space", b"GET /index bounds HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("a path of 20,000 bytes", b"GET /records/" + b"9" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("`GET http://x:99999/index_bounds`", b"GET http://x:99999/index_bounds HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    wrong("no `Host`", b"GET /index_bounds HTTP/1.1\r\n\r\n"),
    header("two `Host`", b"Host: y"),
    header("a header of 20,000 bytes", b"X: " + b"a" * 20_000),
    header("200 headers", b"\r\n".join(b"X%d: a" % number for number in range(200))),
    header("a header without a colon", b"nonsense"),
    header("a header with a space before its colon", b"X : a"),
    header("a header with a control character", b"X: a\x01b"),
    header("a header with a zero byte", b"X: a\x00b"),
    header("a folded header", b"X: a\r\n b"),
    header("a header whose name is not ASCII", "Ü: a".encode()),
    header("an `Accept` that is not ASCII", b"Accept: \xff"),
    wrong("a `Content-Type` that is not ASCII", sized(b"26").replace(b"/json", b"/json; x=\xff")),
    wrong("a `Quire-Session` that is not ASCII", sized(b"26\r\nQuire-Session: \xff\r\nQuire-Sequence: 1")),
    Raw("`Expect: banana`", (sized(b"26\r\nExpect: banana"),), 417, "expectation-unknown"),
    Raw("an `Expect` that is not ASCII", (GET + b"Expect: \xff\r\n\r\n",), 417, "expectation-unknown"),
    header("an `Upgrade` that is not ASCII", b"Upgrade: \xff"),
    wrong("a stream whose key is not ASCII", shaken(b"dGhl", b"\xffGhl")),
    target(b"/records/\xff"),
    target(b"/records?from=\xff"),
    target(b"/records/%zz"),
    target(b"/records/%"),
    target(b"/records/%00"),
    target(b"/records/%ff"),
    target(b"/records/%ed%a0%80"),
    target(b"/records?from=%zz"),
    target(b"/records?from=%ff"),
    target(b"/records?%ed%a0%80=1"),
    target(b"/records?from=1;to=2"),
    target(b"/../index_bounds", 404, "http"),
    target(b"//index_bounds", 404, "http"),
    target(b"/records%2f1", 404, "http"),
    Raw("`OPTIONS *`", (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",), 404, "http"),
    Raw("`CONNECT x:1`", (b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",), 403, "host-refused"),
    Raw("`GET http://x/index_bounds`", (GET.replace(b"/index", b"http://x/index") + b"\r\n",), 403, "host-refused"),
    host(b"x"),
    host(b"x@localhost"),
    host(b"localhost:x"),
    host(b"[::1"),
    host(b""),
    page(b"Origin: http://x"),
    page(b"Origin: null"),
    page(b"Sec-Fetch-Site: cross-site"),
    Raw("a stream without `Sec-WebSocket-Version`", (shaken(b"Sec-WebSocket-Version: 13\r\n", b""),), 400, "http"),
    Raw("a stream of WebSocket version 99", (shaken(b"13", b"99"),), 400, "http"),
    Raw("a stream without `Sec-WebSocket-Key`", (shaken(b"Sec-WebSocket-Key", b"X"),), 400, "http"),
    Raw("a stream whose key is `xx`", (shaken(b"dGhlIHNhbXBsZSBub25jZQ==", b"xx"),), 400, "http"),
    Raw("a stream with `POST`", (shaken(b"GET", b"POST"),), 405, "http"),
]

TAKEN = [
    Raw("`GET /index_bounds` without a version", (b"GET /index_bounds\r\n\r\n",), 200),
    Raw("HTTP/1.0 without a `Host`", (b"GET /index_bounds HTTP/1.0\r\n\r\n",), 200),
    Raw("an unrelated header that is not ASCII", (GET + b"X: \xff\xfe\r\n\r\n",), 200),
    Raw("a `Quire-Request-Id` that is not ASCII: replaced", (GET + b"Quire-Request-Id: \xff\r\n\r\n",), 200),
    Raw("a body where none is expected", (GET + b"Content-Length: 5\r\n\r\nhello",), 200),
    Raw("a fragment in the path", (b"GET /index_bounds#x HTTP/1.1\r\nHost: localhost\r\n\r\n",), 200),
    Raw("an absolute URL", (b"GET http://localhost/index_bounds HTTP/1.1\r\nHost: localhost\r\n\r\n",), 200),
    Raw("`Expect: banana` of HTTP/1.0", (GET.replace(b"/1.1", b"/1.0") + b"Expect: banana\r\n\r\n",), 200),
    Raw("`Upgrade: h2c`", (GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n",), 200),
    Raw(
        "`Upgrade: websocket` for a route that is not a stream",
        (GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",),
        200,
    ),
]


def frame(code: int, data: bytes, *, fin: bool = True, reserved: int = 0, length: int | None = None) -> bytes:
    """A masked WebSocket frame; `length` is what its header claims, if not the truth."""
    said = len(data) if length is None else length
    head = bytes([fin << 7 | reserved << 4 | code])
    if said < 126:
        head += bytes([0x80 | said])
    elif said < 1 << 16:
        head += b"\xfe" + struct.pack(">H", said)
    else:
        head += b"\xff" + struct.pack(">Q", said)
    return head + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(data))


def message(says: str, data: bytes, problem: str = "malformed") -> OnStream:
    """A message that is answered with a problem."""
    return OnStream(says, frame(BINARY, data), 1000, problem)


def closing(data: bytes) -> bytes:
    return frame(CLOSE, data)


GOOD = pack([1, [["add", 0]]])
MESSAGES = [
    message("no bytes", b""),
    message("no msgpack", b"\xc1\xc1"),
    message("a number", pack(5)),
    message("a map", pack({"sequence": 1, "commands": [["add", 0]]})),
    message("a list of three", pack([1, [["add", 0]], 1])),
    message("no commands", pack([1, []])),
    message("commands that are not a list", pack([1, "add"])),
    message("a sequence that is text", pack(["1", [["add", 0]]])),
    message("a sequence that is a float", pack([1.0, [["add", 0]]])),
    message("a sequence that is true", pack([True, [["add", 0]]])),
    message("a sequence below 0", pack([-1, [["add", 0]]])),
    message("sequence 0", pack([0, [["add", 0]]]), "sequence-refused"),
    message("bytes after the message", GOOD + b"x"),
    message("a truncated message", GOOD[:-1]),
    message("a list of two with the header of a long list", b"\xdc\x00\x02\x01" + pack([["add", 0]])),
    message("a sequence that is not in its smallest encoding", b"\x92\xcd\x00\x01" + pack([["add", 0]])),
    message("a float that is not finite", pack([1, [["add", float("inf")]]])),
    message("33 nested lists", b"\x92\x01\x91" + b"\x91" * 33 + b"\xc0"),
    message("5,000 nested lists", b"\x92\x01\x91" + b"\x91" * 5000 + b"\xc0"),
    message("a reserved ext type", b"\x92\x01\x91\xc7\x01\x05x"),
    message("text that is not UTF-8", b"\x92\x01\x91\xa1\xff"),
    message("a map with a key twice", b"\x92\x01\x91\x82\xa1a\x01\xa1a\x02"),
    message("a map whose key is a list", b"\x92\x01\x91\x81\x90\x01"),
    message("8,193 commands", pack([1, [["add", 0]] * 8193]), "limit-exceeded"),
    message("a command that the machine refuses", pack([1, [["div", 0]]]), "commands-refused"),
    OnStream("a text frame", frame(TEXT, b"hello"), 1000, "malformed"),
]
FRAMES = [
    OnStream("a text frame that is not UTF-8", frame(TEXT, b"\xff\xfe"), 1007),
    OnStream("a message of 2 MiB", frame(BINARY, bytes(2 << 20)), 1009),
    OnStream("a frame that claims 2^40 bytes", frame(BINARY, b"", length=1 << 40), 1009),
    OnStream("a frame that claims 2^63 + 5 bytes", frame(BINARY, b"", length=(1 << 63) + 5), 1009),
    OnStream(
        "twelve frames of 128 KiB that form one message",
        b"".join(frame(CONTINUED if number else BINARY, bytes(1 << 17), fin=False) for number in range(12)),
        1009,
    ),
    OnStream("the first reserved bit", frame(BINARY, GOOD, reserved=4), 1002),
    OnStream("the second reserved bit", frame(BINARY, GOOD, reserved=2), 1002),
    OnStream("an unknown data opcode", frame(3, GOOD), 1002),
    OnStream("an unknown control opcode", frame(11, GOOD), 1002),
    OnStream("a continuation without a first frame", frame(CONTINUED, GOOD), 1002),
    OnStream(
        "a text frame inside a fragmented message", frame(BINARY, GOOD[:3], fin=False) + frame(TEXT, GOOD[3:]), 1002
    ),
    OnStream("a ping of 200 bytes", frame(PING, bytes(200)), 1002),
    OnStream("a ping in fragments", frame(PING, b"hi", fin=False), 1002),
    OnStream("a close frame of one byte", closing(b"\x03"), 1002),
    OnStream("a close frame with code 0", closing(struct.pack(">H", 0)), 1002),
    OnStream("a close frame with code 999", closing(struct.pack(">H", 999)), 1002),
    OnStream("a close frame with code 1005", closing(struct.pack(">H", 1005)), 1002),
    OnStream("a close frame with code 65535", closing(struct.pack(">H", 65535)), 1000),
    OnStream("a close whose reason is no UTF-8", closing(struct.pack(">H", 1000) + b"\xff"), 1007),
    OnStream("a close of 202 bytes", closing(struct.pack(">H", 1000) + bytes(200)), 1002),
    OnStream("a request for something else", GET + b"\r\n", 1002),
]

HEADER_NAMES = (
    *("Accept", "Accept-Encoding", "Access-Control-Request-Method", "Authorization", "Connection", "Content-Encoding"),
    *("Content-Length", "Content-Type", "Content-Disposition", "Cookie", "Expect", "Forwarded", "Host", "If-Match"),
    *("If-None-Match", "If-Modified-Since", "If-Range", "Keep-Alive", "Origin", "Range", "Referer", "Sec-Fetch-Site"),
    *("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions", "TE"),
    *("Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "X-Forwarded-For", "X-Forwarded-Host"),
    *("Quire-Request-Id", "Quire-Forwarded", "Quire-Session", "Quire-Sequence", "Quire-History", "Quire-Headers"),
    "Quire-Unheard-Of",
)
"""What aiohttp or the node may look at, before any middleware or after."""
NOT_TEXT = b"\xff"
HEADER_VALUES = (
    *(NOT_TEXT, b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", "é".encode(), b"a\xffb"),
    *(b"", b" ", b",", b";", b"=", b'"', b'"\xff', b"%ff", b"a" * 8000, b"\xff" * 8000, b"a" * 9000),
    *(b"100-continue", b"100-continue\xff", b"websocket", b"websocket\xff", b"chunked\xff", b"gzip\xff", b"null"),
    *(b"permessage-deflate; client_max_window_bits=\xff", b"permessage-deflate; server_max_window_bits=99"),
    *(b"application/json; charset=\xff", b"bytes=0-\xff", b"http://\xff", b"[::1", b"[\xff]:1", b'{"a":"\xff"}'),
)
TARGETS = (
    *(b"GET /index_bounds", b"GET /nowhere", b"PUT /index_bounds", b"OPTIONS /index_bounds", b"GET /healthz"),
    *(b"GET /commands/stream?session=1", b"GET /peer", b"GET /peer/stream", b"GET /peer/snapshot"),
)
OPENING = {
    b"Host": b"localhost",
    b"Upgrade": b"websocket",
    b"Connection": b"Upgrade",
    b"Sec-WebSocket-Version": b"13",
    b"Sec-WebSocket-Key": b"dGhlIHNhbXBsZSBub25jZQ==",
}


def changed_headers() -> Iterator[tuple[bytes, bytes]]:
    """(value, request) of each header with each value: for another one, and beside it. All of them have an answer."""
    for target in TARGETS:
        is_socket = b"stream" in target or b"peer" in target
        headers = dict(OPENING) if is_socket else {b"Host": b"localhost"}
        for name in map(str.encode, HEADER_NAMES):
            for value in HEADER_VALUES:
                lines = [b": ".join(given) for given in headers.items()]
                line = name + b": " + value
                others = [other for other in lines if not other.startswith(name + b":")]
                for sent in ([*others, line], [*lines, line] if len(lines) > len(others) else [*lines, line, line]):
                    yield value, target + b" HTTP/1.1\r\n" + b"\r\n".join(sent) + b"\r\n\r\n"
