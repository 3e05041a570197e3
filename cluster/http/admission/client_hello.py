"""Reads which name a TLS client dials from its first message, before any work is done for it (RFC 8446, 4.1.2).

The answer only selects the context that the handshake begins with, and OpenSSL then reads the same bytes itself. A
message that is misread here gives a caller no more than it had: one context proves nothing about it, and the other
demands a certificate.
"""

HANDSHAKE = 22
"""The type of the first record of TLS, and its first byte."""
HELLO_BYTES = 16 << 10
"""A longer hello is refused. Those of browsers take two."""

CLIENT_HELLO = 1
SERVER_NAME = 0
HOST_NAME = 0
RECORD_HEAD = 5
MAX_RECORDS = 16
"""A hello in more records, or with more extensions than MAX_EXTENSIONS, is left to OpenSSL: nobody sends one."""
MAX_EXTENSIONS = 256
MESSAGE_HEAD = 4


def dialled_name(sent: bytes) -> str | None:
    """The name in a ClientHello, in lower case; empty if there is none to be found. None if more must arrive first."""
    message, at, records = bytearray(), 0, 0
    while len(message) < MESSAGE_HEAD or len(message) < MESSAGE_HEAD + int.from_bytes(message[1:MESSAGE_HEAD]):
        head = sent[at : at + RECORD_HEAD]
        records += 1
        if (head and head[0] != HANDSHAKE) or (message and message[0] != CLIENT_HELLO) or records > MAX_RECORDS:
            return ""
        length = int.from_bytes(head[3:])
        at += RECORD_HEAD + length
        if len(head) < RECORD_HEAD or len(sent) < at:
            return None
        message += sent[at - length : at]
    return _name_in(bytes(message[MESSAGE_HEAD:])) if message[0] == CLIENT_HELLO else ""


def _name_in(hello: bytes) -> str:
    try:
        at = 2 + 32  # The version and the random bytes.
        at += 1 + hello[at]  # The session's id.
        at += 2 + _uint16(hello, at)  # The ciphers.
        at += 1 + hello[at]  # The compression methods.
        end = at + 2 + _uint16(hello, at)
        at += 2
        for _ in range(MAX_EXTENSIONS):
            if at >= end:
                break
            kind, length = _uint16(hello, at), _uint16(hello, at + 2)
            at += 4
            if kind == SERVER_NAME and hello[at + 2] == HOST_NAME:
                name = hello[at + 5 : at + 5 + _uint16(hello, at + 3)]
                return name.decode("ascii", "replace").lower()
            at += length
    except IndexError:
        pass
    return ""


def _uint16(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]
