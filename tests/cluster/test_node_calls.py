"""What `quire snapshot` and `expire` say that each node did, and whom they wait for."""

import asyncio
import os
import pty
import signal
import subprocess
from typing import Any, cast

import pytest
from aiohttp import web

from quire.cluster.cli.operating.node_calls import expired_sentence, size_of
from quire.cluster.cli.output import Exit
from quire.cluster.client import SegmentsExpired, Status
from tests.cluster.scripted import document, scripted, silent
from tests.ports import HOST
from tests.processes.cluster import DEADLINE_S, QUIRE, environment

NOTHING = {"node_id": "n1", "segments": 0, "to_index": 7, "bytes": 0}
SNAPSHOTS = {"what": "snapshots", "index": 9, "why": "the older of the two newest snapshots is at index 9"}
FOLLOWER = {"what": "follower", "index": 9, "why": "n3 has what is below, and lacks 5,000 bytes"}


def said(gone: dict[str, Any], *, dry_run: bool = False, held: int = 0, **expiry: Any) -> str:
    status = {
        "log_bytes": expiry.pop("log_bytes", 0),
        "expiry": {
            "retention_bytes": 0,
            "retention_ms": 0,
            "held": {"segments": held, "to_index": 0, "bytes": held * 64_000_000},
            "holds": [SNAPSHOTS],
            **expiry,
        },
    }
    return expired_sentence(cast("SegmentsExpired", gone), 1_000, cast("Status", status), dry_run=dry_run)


def test_an_expiry_names_the_segments_their_records_and_their_size() -> None:
    gone = {"node_id": "n1", "segments": 2, "to_index": 40_000, "bytes": 128_000_000}

    assert said(gone, retention_bytes=1) == "removed 2 segments [1,000, 40,000), 128 MB"
    assert said({**gone, "segments": 1}, dry_run=True, held=1, holds=[FOLLOWER]) == (
        "would remove 1 segment [1,000, 40,000), 128 MB; 1 segment, 64 MB, is held: n3 has what is below, and lacks "
        "5,000 bytes"
    )


def test_an_expiry_that_removes_nothing_says_why() -> None:
    assert said(NOTHING, held=2, retention_bytes=1) == (
        "removed nothing: 2 segments, 128 MB, are held: the older of the two newest snapshots is at index 9; "
        "`quire snapshot` takes one now"
    )
    assert said(NOTHING, dry_run=True) == (
        "would remove nothing: no limit is set; see --retention-bytes and --retention-ms of `quire serve`"
    )
    assert said(NOTHING, retention_bytes=10**9, log_bytes=2_000, retention_ms=60_000) == (
        "removed nothing: the log is not larger than --retention-bytes (2.0 kB of 1.0 GB) and no whole segment is "
        "older than --retention-ms (60 s)"
    )
    assert said(NOTHING, retention_bytes=1, log_bytes=680) == (
        "removed nothing: all is in the segment that is written (680 bytes of 1 byte)"
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_960, "10 kB"),
        (999_499, "999 kB"),
        (999_501, "1.0 MB"),
        (128_000_000, "128 MB"),
        (5 * 10**15, "5,000 TB"),
    ],
)
def test_a_size_has_two_or_three_digits(count: int, text: str) -> None:
    assert size_of(count) == text


def on_terminal(*arguments: str) -> str:
    """What a command prints on a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen([*QUIRE, *arguments], stdin=its, stdout=its, stderr=its, env=environment()) as process:
        os.close(its)
        text = b""
        try:
            while part := os.read(ours, 1 << 12):
                text += part
        except OSError:  # All that had the terminal open have ended.
            pass
        os.close(ours)
    assert process.returncode is not None
    return text.decode()


@pytest.mark.full
async def test_a_terminal_shows_each_node_once_it_has_answered_and_whom_the_command_waits_for() -> None:
    async with silent() as frozen:

        def answering(request: web.Request) -> web.Response | None:
            if request.path == "/admin/snapshot":
                return document({"node_id": "n2", "index": 7, "bytes": 9, "sha256": "ab" * 32})(request)
            members = [{"node_id": "n1", "address": frozen}, {"node_id": "n2", "address": request.host}]
            return document({"node_id": "n2", "members": members, "snapshots": {"kept": []}})(request)

        async with scripted(answering) as server:
            command = ("snapshot", "--timeout", "2", "--server", server.address)
            text = await asyncio.to_thread(on_terminal, *command)
            piped = await asyncio.to_thread(
                subprocess.run, [*QUIRE, *command], capture_output=True, text=True, env=environment(), check=False
            )

    assert 0 <= text.find("n2 took a snapshot at 7 (9 bytes, sha256 abababab, ") < text.find("waiting for n1")
    assert text.find("waiting for n1") < text.find("quire: n1: ")
    assert piped.returncode == 1
    assert piped.stdout.startswith("n2 took a snapshot at 7 (9 bytes, sha256 abababab, ")
    assert piped.stderr.startswith("quire: n1: ")
    assert (piped.stdout.count("\n"), piped.stderr.count("\n")) == (1, 1)


@pytest.mark.full
@pytest.mark.parametrize("command", ["status", "snapshot", "expire"])
async def test_ctrl_c_ends_a_command_that_waits_with_one_sentence(command: str) -> None:
    asked = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(accept, HOST, 0) as server:
        address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
        process = await asyncio.create_subprocess_exec(
            *[*QUIRE, command, "--timeout", "60", "--server", address],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        async with asyncio.timeout(DEADLINE_S):
            await asked.wait()
            process.send_signal(signal.SIGINT)
            output, errors = await process.communicate()

    assert (process.returncode, output) == (Exit.INTERRUPTED, b"")
    assert errors.startswith(b"quire: interrupted")
    assert errors.count(b"\n") == 1
