"""A cursor of the cluster that keeps the log from expiring before it is archived (docs/consumers.md).

The archiver takes the cursor once, as any consumer does, and commits the archive's end to it after each file. Whoever
takes, moves or deletes the cursor after that fences this archiver, which ends then: it does not take the cursor back.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from quire.cluster.client import (
    Client,
    ClientError,
    CursorTaken,
    Forbidden,
    NotFound,
    OutcomeUnknown,
    Unauthorized,
    Unavailable,
)
from quire.cluster.client.loop_thread import LoopThread

from ..errors import ClusterUnavailable, HoldRefused, OptionRefused
from ..source.options import SourceOptions

MAX_NAME = 192
_PLAIN = re.compile(r"(?:/(?!\.+(?:/|$))[A-Za-z0-9._:@~-]+)+(?<!/)")
_SHARE = re.compile(r".*/[0-9]+-[0-9]+")
"""What ends like this is a share's cursor."""


def cursor_of(path: str) -> str:
    """The name of the cursor of the archive at a path: the same for the same absolute path, on any host."""
    absolute = os.path.abspath(path)
    name = f"archive:{absolute}"
    if _PLAIN.fullmatch(absolute) and not _SHARE.fullmatch(absolute) and len(name) <= MAX_NAME:
        return name
    base = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(absolute))[:100]
    return f"archive:{base}~{sha256(os.fsencode(absolute)).hexdigest()[:16]}"


class LogHold:
    """A hold on a cluster's log by a cursor, which outlives the process: delete it when the archive is given up."""

    def __init__(self, options: SourceOptions, name: str, hold_bytes: int) -> None:
        """`options` name the nodes; up to `hold_bytes` of the log are held. Raises OptionRefused: they name files."""
        if not options.bootstrap:
            raise OptionRefused("cursor", "files have no cursors; name nodes with bootstrap")
        self.name = name
        self._options = options
        self._hold_bytes = hold_bytes
        self._token = os.urandom(16)
        self._is_taken = False

    def commit(self, index: int, servers: Sequence[str]) -> None:
        """Hold the log of these nodes from `index` on; the first call takes the cursor, or creates it.

        Raises:
            AccessRefused: a file that the options name cannot be used.
            HoldRefused: the token may not do that, another consumer has the cursor, there is no room for the hold, or
                the cursor that is there is past `index`.
            ClusterUnavailable: no node did it in time; it may be repeated.
        """
        thread = LoopThread()  # And not this thread's loop, which runs in a notebook.
        thread.start()
        try:
            thread.run(self._commit(index, servers))
        except (Unavailable, OutcomeUnknown) as error:
            timeout_s = self._options.fetchTimeoutMs / 1000
            reasons = {",".join(servers): str(error)}
            raise ClusterUnavailable(f"what holds the log, the cursor {self.name}", timeout_s, reasons) from error
        except (Unauthorized, Forbidden) as error:
            advice = "give a token with the role write, to whose name the cursor belongs"
            raise HoldRefused(self.name, str(error), advice) from error
        except (CursorTaken, NotFound) as error:
            advice = "give each archive a cursor of its own with --cursor, and run one archiver for each"
            raise HoldRefused(self.name, str(error), advice) from error
        except (ClientError, ValueError) as error:
            raise HoldRefused(self.name, str(error), "name another cursor with --cursor, or hold less") from error
        finally:
            thread.stop(asyncio.sleep(0))

    async def _commit(self, index: int, servers: Sequence[str]) -> None:
        access = self._options.access
        access.credentials()  # Its error names the host.
        async with Client(
            servers,
            timeout_s=self._options.fetchTimeoutMs / 1000,
            token=None if access.token_file is None else Path(access.token_file),
            ca=access.ca,
            refused_grace_s=math.inf,
        ) as client:
            if not self._is_taken:
                with suppress(NotFound):  # Taking it would fence its consumer: look first.
                    self._check(index, (await client.cursors.get(self.name))["index"])
                placed, _ = await client.cursors.take(self.name, None, index, self._token, self._hold_bytes)
                self._check(index, placed)
                self._is_taken = True
            row = await client.cursors.get(self.name)
            # A commit is a record of the log, which the next round archives. If nothing but such records was archived
            # since the last commit, another one would make rounds without end.
            if row["token"] != self._token.hex() or row["next_index"] < index:
                await client.cursors.commit(self.name, index, self._token)

    def _check(self, index: int, placed: int) -> None:
        """Raise HoldRefused if the cursor is past the archive's end: what is between them would not be held."""
        if placed > index:
            reason = f"it is at {placed}, past the archive's end {index}, as after an archive was removed or restored"
            advice = "delete it if nothing else needs it, or name another with --cursor"
            raise HoldRefused(self.name, reason, advice)
