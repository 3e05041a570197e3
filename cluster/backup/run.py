"""One run of a backup: what the store has, what the source has more, and last of all a manifest that names both.

    manifests read, files listed -> source chosen -> a chain continued, or begun with genesis or a snapshot
        -> pieces, with a manifest after each GiB -> the newest snapshot, if it is worth it -> manifest
        -> manifests deleted that this run and the one before thin -> files deleted that none names

Times are by the cluster's clock, which each run asks for. If that of this machine or of the store differs by more than
an hour, the run says so and deletes nothing.

Each manifest is created under the next number, which only one writer can do: another one finds it taken and stops.
A file that a manifest names and that the store has lost or damaged ends the chain before it. The run continues from
there if the source still has what follows, and otherwise begins a new chain.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import NamedTuple

from crc32c import crc32c

from quire.log import Tail, UnknownVersion, decode_header, time_since_boot
from quire.sm import SnapshotDamaged
from quire.sm.snapshots.manifest import Manifest as Snapshot
from quire.sm.snapshots.manifest import decode_manifest as decode_snapshot

from ..client import Client, NotFound, Unavailable
from . import keeping
from .chain import Chain
from .contents import shown_time
from .manifest import (
    FRAMES,
    FULL,
    MANIFESTS,
    MAX_MANIFEST_BYTES,
    PIECE_BYTES,
    SNAPSHOTS,
    BackupInvalid,
    BackupRefused,
    Manifest,
    Piece,
    decode_manifest,
    is_chunk_of,
    is_of_backup,
    manifest_number,
    piece_key,
    read_manifest,
    sizes_of,
    snapshot_files,
    snapshot_manifest_key,
    snapshot_row,
)
from .source import ASKED_BYTES, FramesExpired, Range, Source, choose
from .store import TEMPORARY, Store, Stored, StoreDamaged, StoreFailed, StoreMissing, StoreTaken

MANIFEST_EACH_BYTES = 1 << 30
"""A first backup of terabytes that is cut short continues from the last of these."""
UNKNOWN_DIGEST = (0, "00" * 16)
"""The digest at index 0: true of every log, and all that is known between two reports."""
SAID_AGAIN_US = keeping.HOUR_US
"""After this time a manifest says that nothing is new: until when a backup reaches is its manifest's time."""
ATTEMPTS = 3
"""A run begins anew if the store turns out to have lost a file, or the source expires frames, while it runs."""
ADOPTED_S = keeping.ORPHAN_S / 2
"""A chunk that a run left which was cut short is used only if it is younger: older ones may be deleted meanwhile."""
FREE_SNAPSHOT_BYTES = 1 << 20
"""A snapshot of this size is always worth it."""
MICROSECONDS = 1_000_000

Say = Callable[[str], None]


class StoreLost(StoreFailed):
    """The store has lost or damaged a file that a manifest names."""


class Outcome(NamedTuple):
    """What a run did."""

    manifest: Manifest
    is_new: bool
    pieces: int
    size: int
    committed: int
    """The end of what any node had committed; the backup ends at or below it."""
    age: int
    """How old the manifest was when the run began, in microseconds by the cluster's clock; 0 if it is new."""


class Backup:
    """Backups of one cluster in one place, one run at a time."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        say: Say,
        *,
        node: str | None = None,
        keep_us: int | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """`clock` gives microseconds since 1970; it is only compared with the cluster's, by which all is judged.

        `say` gets a sentence about what an operator must know.
        """
        self._store = store
        self._clock = clock
        self._say = say
        self._node = node
        self._keep_us = keep_us
        self._piece_bytes = piece_bytes
        self._writer = token_hex(8)
        self._damaged = set[str]()
        self._known = dict[str, Manifest]()
        self._unread = frozenset[str]()
        """The manifests that are there and cannot be read: nobody knows what they name."""
        self._last = ""
        self.last_time: int | None = None
        """The time of the newest manifest, once it was read."""

    async def run(self, client: Client, servers: Sequence[str]) -> Outcome:
        """Bring the backup up to date.

        Raises:
            BackupRefused: the place has the backup of another cluster or history, or another writer.
            StoreFailed, ClientError: the store or the cluster failed. What a manifest names counts.
            BackupInvalid: the source's frames are damaged.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._run(client, servers)
            except (StoreLost, FramesExpired) as error:
                if attempt == ATTEMPTS - 1:
                    raise
                self._say(f"{error}; beginning again")
        raise AssertionError

    async def _run(self, client: Client, servers: Sequence[str]) -> Outcome:
        began = time_since_boot()
        manifests, number = await asyncio.to_thread(self._read)
        files = await asyncio.to_thread(_files_of, self._store)
        last = manifests[-1] if manifests else None
        source = await choose(client, servers, self._node, self._store.name, last)
        now = began + source.clock_offset
        young = now / MICROSECONDS - ADOPTED_S
        adopted = {key: stored for key, stored in files.items() if stored.modified > young}
        run = _Run(self._store, source, adopted, self._damaged, self._piece_bytes, self._say)
        chain = None if last is None else self._continued(last, source, files)
        run.chain = chain or await run.new_chain(last)

        def stated(chain: Chain, time: int, applied: tuple[int, str]) -> Manifest:
            indices = [row.index for row in chain.snapshots]
            chain.trim(keeping.base_of(manifests, chain.number, time, indices))
            return chain.stated(source.status, number + 1, self._writer, time, applied)

        async def commit(manifest: Manifest) -> None:
            nonlocal number
            await asyncio.to_thread(self._create, manifest)
            manifests.append(manifest)
            number = manifest.number

        async def between() -> None:
            await commit(manifest := stated(run.chain, run.chain.end.timestamp, UNKNOWN_DIGEST))
            self._check_room(manifest)

        if run.chain.end.index < source.end:
            self._check_room(stated(replace(run.chain), now, UNKNOWN_DIGEST))
        await run.extend(source.end, between)
        await run.add_worthy_snapshot()
        if last is not None and run.chain.is_stated_by(last) and abs(now - last.time) < SAID_AGAIN_US:
            return Outcome(last, False, 0, 0, source.known_end, max(0, now - last.time))
        # It has all that was committed when the run began, and perhaps more.
        manifest = stated(run.chain, now, (source.status["applied_index"], source.status["digest"]))
        agrees = self._agrees("here", self._clock(), source)
        gone = keeping.thinned([*manifests, manifest], now, self._keep_us) if agrees else []
        manifest = manifest._replace(thinned=tuple(each.number for each in gone))
        await commit(manifest)
        if manifest.fullness:
            self._say(f"{self._store.name}: {manifest.fullness}")
        if agrees:
            twice = [each for each in gone if last is not None and each.number in last.thinned]
            await asyncio.to_thread(self._sweep, manifests, twice, source)
        return Outcome(manifest, True, run.put_pieces, run.put_bytes, source.known_end, 0)

    def _continued(self, last: Manifest, source: Source, files: dict[str, Stored]) -> Chain | None:
        """The chain of the last manifest, without what the store has lost; None if the source cannot continue it."""
        chain = Chain.of(last)
        lost = chain.cut_lost(lambda name: name in self._damaged or not _is_there(name, last, files))
        if lost:
            self._say(f"{self._store.name} has lost {', '.join(lost[:3])}{' and more' if len(lost) > 3 else ''}")
        lowest = source.status["lowest_index"]
        if (chain.pieces or not lost) and chain.can_restore and chain.end.index >= lowest:
            return chain
        missing = f"records [{chain.end.index}, {lowest})" if chain.end.index < lowest else "what was lost"
        self._say(f"{source.node} has {missing} no longer: a new chain begins, which does not join what is there")
        return None

    def _read(self) -> tuple[list[Manifest], int]:
        """The whole manifests in order, and the highest number. Blocks.

        Raises:
            BackupRefused: a later quire wrote one, or another backup since this one's last.
        """
        keys = sorted(key for key in self._store.list(MANIFESTS) if manifest_number(key) is not None)
        known = {key: self._known.get(key) or read_manifest(self._store, key, self._say) for key in keys}
        self._known = {key: manifest for key, manifest in known.items() if manifest is not None}
        self._unread = frozenset(keys) - self._known.keys()
        if self._last and keys and keys[-1] > self._last:
            newest = self._known.get(keys[-1])
            if newest is None or newest.writer != self._writer:  # Its own, if the answer to its last one was lost.
                raise self._other_writer(keys[-1])
        elif self._last and self._last not in keys:
            advice = "if that was on purpose, start this backup anew"
            raise StoreFailed(f"{self._store.name} has lost the last manifest, {self._last}; {advice}")
        if self._known:
            self.last_time = max(self._known.values(), key=lambda manifest: manifest.number).time
        return list(self._known.values()), -1 if not keys else manifest_number(keys[-1]) or 0

    def _other_writer(self, key: str) -> BackupRefused:
        reason = f"another backup writes to {self._store.name} (it wrote {key})"
        return BackupRefused(f"{reason}; stop one of the two, or give each its own place")

    def _check_room(self, manifest: Manifest) -> None:
        """Raise BackupRefused if more pieces might not fit into the manifest."""
        if manifest.filled >= FULL:
            raise BackupRefused(f"{self._store.name}: {manifest.fullness}")

    def _create(self, manifest: Manifest) -> None:
        """Write a manifest. Blocks. Raises BackupRefused: another writer has taken its number."""
        raw = manifest.encode()
        decode_manifest(raw, manifest.key)  # Never write what nobody could read.
        try:
            self._store.create(manifest.key, raw)
        except StoreTaken:
            # The store may have done it, lost its answer, and been asked again.
            if self._store.get(manifest.key, MAX_MANIFEST_BYTES) != raw:
                raise self._other_writer(manifest.key) from None
        self._known[manifest.key], self._last = manifest, manifest.key

    def _agrees(self, whose: str, clock: int, source: Source) -> bool:
        """Whether a clock is right by the cluster's; says if not. Then one of the two is wrong, or both are."""
        ahead = clock - source.clock
        if abs(ahead) <= keeping.MAX_SKEW_US:
            return True
        order = "ahead of" if ahead > 0 else "behind"
        hours = f"{abs(ahead) / keeping.HOUR_US:,.1f} h {order} the cluster's, {shown_time(source.clock)}"
        self._say(f"the clock {whose} is {hours}: nothing is thinned or deleted until they agree; set it right (NTP)")
        return False

    def _sweep(self, manifests: list[Manifest], gone: list[Manifest], source: Source) -> None:
        """Delete manifests, then files that none of the others names. Blocks."""
        stored = self._store.list(MANIFESTS)
        newest = stored.get(manifests[-1].key)
        if newest is None:
            return  # The store lists what was there earlier, which says nothing about now.
        now = newest.modified  # By the store's clock, as the files' times are.
        if not self._agrees(f"of {self._store.name}", round(now * MICROSECONDS), source):
            return
        self._store.delete([manifest.key for manifest in gone])
        if self._unread:
            self._say(f"files are kept as long as {min(self._unread)} cannot be read: move it away")
            return
        named = set(sizes_of([manifest for manifest in manifests if manifest not in gone]))
        files = stored | _files_of(self._store)
        keys = [key for key, each in files.items() if now - each.modified > keeping.ORPHAN_S]
        self._store.delete([key for key in keys if manifest_number(key) is None and not _is_named(key, named)])


class _Run:
    """The files that a run puts, and the chain that they extend."""

    def __init__(
        self,
        store: Store,
        source: Source,
        files: dict[str, Stored],
        damaged: set[str],
        piece_bytes: int,
        say: Say,
    ) -> None:
        self._say = say
        self._store = store
        self._source = source
        self._files = files
        self._damaged = damaged
        self._piece_bytes = piece_bytes
        self.chain: Chain
        self.put_pieces = self.put_bytes = 0

    async def new_chain(self, last: Manifest | None) -> Chain:
        """A chain that begins with the source's log, or with its newest snapshot if the log has expired in part.

        Raises:
            BackupRefused: there is no snapshot that the log joins.
        """
        status = self._source.status
        number = 0 if last is None else last.chain + 1
        genesis = await self._source.genesis()
        if not status["lowest_index"]:
            return Chain(number, genesis, [(status["cluster_id"], 0)])
        kept = status["snapshots"]["kept"]
        if not kept or kept[-1]["index"] < status["lowest_index"]:
            advice = f"run `quire snapshot` for {self._source.node}, then this again"
            raise BackupRefused(
                f"the log of {self._source.node} has expired in part, and no snapshot joins it; {advice}"
            )
        try:
            snapshot = await self._put_snapshot(kept[-1]["index"])
        except NotFound as error:
            raise FramesExpired(str(error)) from error
        boundary = snapshot.boundary
        history = (snapshot.history.hex(), boundary.history_index)
        return Chain(number, genesis, [history], boundary.tail, [], [snapshot_row(snapshot)])

    # Frames

    async def extend(self, to_index: int, between: Callable[[], Awaitable[object]]) -> None:
        """Put the frames up to a boundary. `between` is called after each MANIFEST_EACH_BYTES.

        While a piece is being put, the next frames are being read.
        """
        begin = end = self.chain.end
        waiting, size, since = list[Range](), 0, 0
        asked = min(ASKED_BYTES, self._piece_bytes // 2)
        reading = asyncio.create_task(self._source.frames(end, to_index, asked))
        try:
            while end.index < to_index:
                waiting.append(found := await reading)
                if not found.raw:
                    raise BackupInvalid(f"{self._source.node} sent no frames from index {end.index} on")
                size, end = size + len(found.raw), found.end
                if end.index < to_index:
                    reading = asyncio.create_task(self._source.frames(end, to_index, asked))
                if size + asked <= self._piece_bytes and end.index < to_index:
                    continue
                await asyncio.to_thread(self._put_piece, begin, waiting)
                begin, since, waiting, size = end, since + size, [], 0
                if since >= MANIFEST_EACH_BYTES and end.index < to_index:
                    await between()
                    since = 0
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _put_piece(self, begin: Tail, ranges: Sequence[Range]) -> None:
        """Put frames as a piece, together with the pieces before it that are smaller. Blocks.

        So pieces grow like a binary counter: a byte is put again once for each doubling, up to the limit.
        """
        raw, end = b"".join(found.raw for found in ranges), ranges[-1].end
        from_index, chain_first, time = begin.index, begin.crc32c, decode_header(raw).timestamp
        for piece in reversed(self.chain.pieces):
            if piece.size > len(raw) or piece.size + len(raw) > self._piece_bytes:
                break
            raw = self._stored(piece) + raw
            from_index, chain_first, time = piece.from_index, piece.chain_first, piece.times[0]
        crc = crc32c(raw)
        file = piece_key(from_index, end.index, crc)
        self._store.put(file, raw)
        self._damaged.discard(file)
        times = (time, end.timestamp)
        piece = Piece(file, from_index, end.index, len(raw), crc, chain_first, end.crc32c, end.epoch, times)
        self.chain.add(piece, end, [row for found in ranges for row in found.histories])
        self.put_pieces += 1
        self.put_bytes += len(raw)

    def _stored(self, piece: Piece) -> bytes:
        """The bytes of a piece. Raises StoreLost."""
        try:
            raw = self._store.get(piece.file, piece.size)
        except (StoreMissing, StoreDamaged):
            raw = b""
        if len(raw) != piece.size or crc32c(raw) != piece.crc:
            self._damaged.add(piece.file)
            raise StoreLost(f"{self._store.name} has lost or damaged {piece.file}")
        return raw

    # Snapshots

    async def add_worthy_snapshot(self) -> None:
        """Put the source's newest snapshot if it is no larger than the frames that a restore need not apply then."""
        kept, chain = self._source.status["snapshots"]["kept"], self.chain
        if not kept or not self._source.status["ready"]:  # Its state may be in doubt; its frames are proven.
            return
        index, size = kept[-1]["index"], kept[-1]["bytes"]
        known = chain.snapshots[-1].index if chain.snapshots else chain.begin
        saved = sum(piece.size for piece in chain.pieces if known <= piece.from_index and piece.to_index <= index)
        if known < index <= chain.end.index and size <= max(saved, FREE_SNAPSHOT_BYTES):
            try:
                chain.snapshots.append(snapshot_row(await self._put_snapshot(index)))
            except (NotFound, Unavailable) as error:  # Replaced since, or unreadable there; the frames need none.
                self._say(f"the snapshot at {index} was not copied from {self._source.node}: {error}")

    async def _put_snapshot(self, index: int) -> Snapshot:
        """Put a snapshot of the source: its chunks, and then its manifest.

        Raises:
            BackupInvalid: what the source sent is damaged.
        """
        raw = await self._source.snapshot_manifest(index)
        try:
            snapshot = decode_snapshot(raw, str(index))
        except (SnapshotDamaged, UnknownVersion) as error:
            raise BackupInvalid(f"from {self._source.node}: {error}") from error
        row = snapshot_row(snapshot)
        for number, (key, size, crc) in enumerate(snapshot_files(row, snapshot)):
            if key in self._files and self._files[key].size == size:
                continue
            data = await self._source.snapshot_chunk(index, number)
            if len(data) != size or crc32c(data) != crc:
                raise BackupInvalid(f"from {self._source.node}: chunk {number} of the snapshot at {index} is damaged")
            await asyncio.to_thread(self._store.put, key, data)
            self.put_bytes += size
        await asyncio.to_thread(self._store.put, snapshot_manifest_key(row), raw)
        return snapshot


def _files_of(store: Store) -> dict[str, Stored]:
    """The files of pieces and snapshots."""
    return store.list(FRAMES) | store.list(SNAPSHOTS)


def _is_there(name: str, manifest: Manifest, files: Mapping[str, Stored]) -> bool:
    """Whether the store has all files of a piece or of a snapshot's folder, with their sizes."""
    for piece in manifest.pieces:
        if piece.file == name:
            return name in files and files[name].size == piece.size
    row = next(row for row in manifest.snapshots if row.folder == name)
    sizes = [stored.size for key, stored in files.items() if is_chunk_of(key, row)]
    return snapshot_manifest_key(row) in files and (len(sizes), sum(sizes)) == (row.files, row.size)


def _is_named(key: str, named: set[str]) -> bool:
    """Whether a manifest needs the file, or it is none of a backup's."""
    if not is_of_backup(key):
        return True
    return key in named or (not key.endswith(TEMPORARY) and key.rpartition("/")[0] in named)
