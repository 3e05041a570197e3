"""Links and streams between simulated nodes, with what a network does to them.

What one connection carries keeps its order, as TCP does; different connections race one another, and so do an old and
a new one between the same two nodes. A cut direction holds up what it carries; when it heals, a connection either goes
on, everything late and in order, or has broken, everything lost, and is dialled again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from quire.replication.core import actions, events
from quire.replication.core.messages import (
    Ack,
    CrcMismatch,
    GenesisOffer,
    LagReport,
    Open,
    OpenAnswer,
    PeerMessage,
    PositionReport,
)
from quire.replication.net.wire import (
    BadMessage,
    FrameAssembler,
    Shipment,
    decode_peer,
    decode_stream,
    encode,
    from_message,
    to_messages,
)

from .schedule import MILLISECOND, Schedule

REDIAL_US = 60 * MILLISECOND
RESET_US = 2 * MILLISECOND


class End(Protocol):
    """A node as the network sees it."""

    node_id: str
    disk_id: bytes
    life: int
    upstreams: "dict[int, Stream]"
    downstreams: "dict[int, Stream]"

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        ...

    def run(self, life: int, call: Callable[..., None], *arguments: Any) -> None:
        """Let that life of it do something, if it still lives."""
        ...

    def step(self, event: events.Event) -> None:
        """Hand its driver an event."""
        ...

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        """A chunk of its snapshot, or its manifest; None where it has none."""
        ...

    def next_stream_id(self) -> int:
        """A number for a stream that a follower opened."""
        ...


@dataclass
class Weather:
    """What the network does on a usual day: delays in microseconds, chances in [0, 1]."""

    lowest_us: int = 200
    highest_us: int = 3_000
    late_chance: float = 0.02
    late_us: int = 60_000
    double_chance: float = 0.01
    break_chance: float = 0.5
    piece_bytes: int = 1 << 20
    max_frame_bytes: int = 1 << 20


class Pipe:
    """One direction of one connection: what is put in comes out in order, or never."""

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self._network = network
        self._route = (source, target)
        self._clear_at = 0
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.broken = False

    def put(self, arrive: Callable[..., None], *arguments: Any) -> None:
        """Send something."""
        schedule = self._network.schedule
        self._clear_at = max(self._clear_at, schedule.now + self._network.delay(self._route))
        schedule.at(self._clear_at, self._come_out, arrive, arguments)

    def _come_out(self, arrive: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.broken:
            return
        if self._waiting or self._route in self._network.cut:
            if not self._waiting:
                self._network.held_up.append(self)
            self._waiting.append((arrive, arguments))
            return
        arrive(*arguments)

    @property
    def is_cut(self) -> bool:
        """Whether nothing gets through."""
        return self._route in self._network.cut

    def go_on(self) -> None:
        """The cut is over: what waited comes, in order."""
        waiting, self._waiting = self._waiting, []
        for arrive, arguments in waiting:
            self.put(arrive, *arguments)


@dataclass(eq=False)
class Link:
    """What one node dialled to another: `/peer`. A new `pipe` each time."""

    source: End
    target: End
    pipe: Pipe | None = None
    known: Pipe | None = None
    """The pipe that the source knows of: one that stands still hears of a new one when it goes on, and uses it then."""
    target_life: int = 0
    source_life: int = 0
    dialled_by: int = 0
    """The life of the source that is about to dial."""


@dataclass(eq=False)
class Stream:
    """`/peer/stream`: the follower's end and the leader's."""

    follower: End
    follower_life: int
    leader: End
    leader_life: int
    up: Pipe
    down: Pipe
    assembler: FrameAssembler
    follower_stream_id: int
    leader_stream_id: int = 0
    promise_epoch: int = 0


@dataclass
class Network:
    """All connections of a history."""

    schedule: Schedule
    random: Random
    weather: Weather
    ends: dict[str, End] = field(default_factory=dict)
    cut: dict[tuple[str, str], int] = field(default_factory=dict)
    slow: dict[tuple[str, str], int] = field(default_factory=dict)
    held_up: list[Pipe] = field(default_factory=list)
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)

    def delay(self, route: tuple[str, str]) -> int:
        """How long something takes that is sent now."""
        weather, random = self.weather, self.random
        base = random.randint(weather.lowest_us, weather.highest_us) + self.slow.get(route, 0)
        if random.random() < weather.late_chance:
            base += random.randint(0, weather.late_us)
        return base

    # Cuts

    def begin_cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Let nothing through from the first to the second of each pair; both ends soon hear so, or late, or never."""
        latest = self.random.choice((2 * RESET_US, 300 * MILLISECOND))
        for pair in pairs:
            self.cut[pair] = self.cut.get(pair, 0) + 1
            link = self.links[pair]
            if link.pipe is not None and self.random.random() < self.weather.break_chance:
                link.pipe.broken = True
                self.schedule.later(self.random.randint(RESET_US, latest), self._link_lost, link, link.pipe)
        for stream in self.streams:
            if (stream.up.is_cut or stream.down.is_cut) and self.random.random() < self.weather.break_chance:
                self._break_stream(stream, self.random.randint(RESET_US, latest))

    def end_cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """One cut of each pair is over."""
        for pair in pairs:
            count = self.cut.pop(pair, 0) - 1
            if count > 0:
                self.cut[pair] = count
        held_up, self.held_up = self.held_up, []
        for pipe in held_up:
            if pipe.is_cut:
                self.held_up.append(pipe)
            elif not pipe.broken:
                pipe.go_on()

    # Links

    def came_up(self, node: End) -> None:
        """A node started: it dials everybody, and everybody dials it."""
        for other in self.ends.values():
            if other is not node:
                for link in (self.links[(node.node_id, other.node_id)], self.links[(other.node_id, node.node_id)]):
                    self._redial(link, self.random.randint(0, REDIAL_US))

    def went_down(self, node: End, *, hears_it: bool) -> None:
        """A node stopped. Its peers hear so at once (a killed process) or late (no power)."""
        soonest, latest = (RESET_US, 2 * RESET_US) if hears_it else (50 * MILLISECOND, 500 * MILLISECOND)
        for (source, target), link in self.links.items():
            if node.node_id == target and link.pipe is not None:
                link.pipe.broken = True
                self.schedule.later(self.random.randint(soonest, latest), self._link_lost, link, link.pipe)
            elif node.node_id == source:
                link.pipe = None  # what is on its way still arrives
        for stream in list(self.streams):
            if node in (stream.follower, stream.leader):
                self._break_stream(stream, self.random.randint(soonest, latest))

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Connections end and are dialled again; what is on its way arrives beside what the new ones carry."""
        for pair in pairs:
            link = self.links[pair]
            if link.pipe is not None:
                self._link_lost(link, link.pipe)

    def _link_lost(self, link: Link, pipe: Pipe) -> None:
        if link.pipe is not pipe:
            return
        link.pipe = None
        link.source.run(link.source_life, link.source.step, events.LinkDown(link.target.node_id))
        self._redial(link, self.random.randint(0, REDIAL_US))

    def _redial(self, link: Link, delay: int) -> None:
        source = link.source
        if source.runs and link.dialled_by != source.life:
            link.dialled_by = source.life
            self.schedule.later(delay, self._dial, link, source.life)

    def _dial(self, link: Link, source_life: int) -> None:
        source, target = link.source, link.target
        if link.dialled_by == source_life:
            link.dialled_by = 0
        if link.pipe is not None or not source.runs or source.life != source_life:
            return
        route = (source.node_id, target.node_id)
        if not target.runs or route in self.cut or route[::-1] in self.cut:
            self._redial(link, REDIAL_US)
            return
        link.pipe = Pipe(self, *route)
        link.source_life, link.target_life = source.life, target.life
        source.run(source.life, self._link_up, link, link.pipe, events.LinkUp(target.node_id, target.disk_id))

    @staticmethod
    def _link_up(link: Link, pipe: Pipe, event: events.LinkUp) -> None:
        link.known = pipe
        link.source.step(event)

    def send(self, source: End, node_id: str, message: PeerMessage) -> None:
        """A message on a link; lost without a word where there is none."""
        if isinstance(message, PositionReport | LagReport | GenesisOffer):
            return  # for status and for lag: nothing that a rule reads
        link = self.links.get((source.node_id, node_id))
        if link is None or link.pipe is None or link.pipe is not link.known:
            return
        data = encode(message)
        arguments = (link.target, link.target_life, source.node_id, source.disk_id, data)
        link.pipe.put(self._arrive, *arguments)
        if self.random.random() < self.weather.double_chance:
            self.schedule.later(self.random.randint(0, 2 * self.weather.late_us), self._arrive, *arguments)

    def _arrive(self, target: End, life: int, source: str, disk_id: bytes, data: bytes) -> None:
        target.run(life, target.step, events.Received(source, disk_id, decode_peer(data)))  # type: ignore[arg-type]

    # Streams

    def dial_stream(self, follower: End, action: actions.DialStream) -> None:
        """The follower dials; both directions have to work, or it fails after a while."""
        leader = self.ends[action.leader_id]
        route, back = (follower.node_id, leader.node_id), (leader.node_id, follower.node_id)
        took = self.delay(route) + self.delay(back)
        if not leader.runs or route in self.cut or back in self.cut:
            closed = events.StreamClosed(action.stream_id)
            self.schedule.later(took + 20 * MILLISECOND, follower.run, follower.life, follower.step, closed)
            return
        stream = Stream(
            follower,
            follower.life,
            leader,
            leader.life,
            Pipe(self, *route),
            Pipe(self, *back),
            FrameAssembler(self.weather.max_frame_bytes),
            action.stream_id,
        )
        self.streams.append(stream)
        follower.upstreams[action.stream_id] = stream
        self.schedule.later(took, follower.run, follower.life, self._connected, stream)

    def _connected(self, stream: Stream) -> None:
        if stream.follower_stream_id in stream.follower.upstreams:
            stream.follower.step(events.StreamConnected(stream.follower_stream_id))

    def send_up(self, stream: Stream, message: Open | Ack | CrcMismatch) -> None:
        """From the follower to the leader."""
        stream.up.put(stream.leader.run, stream.leader_life, self._arrive_up, stream, encode(message))

    def _arrive_up(self, stream: Stream, data: bytes) -> None:
        message, leader = decode_stream(data), stream.leader
        if isinstance(message, Open):
            follower = stream.follower
            stream.leader_stream_id = leader.next_stream_id()
            stream.promise_epoch = message.promise.epoch
            leader.downstreams[stream.leader_stream_id] = stream
            leader.step(events.StreamOpened(stream.leader_stream_id, follower.node_id, follower.disk_id, message))
        elif stream.leader_stream_id not in leader.downstreams:
            return
        elif isinstance(message, Ack):
            leader.step(events.AckArrived(stream.leader_stream_id, message))
        elif isinstance(message, CrcMismatch):
            leader.step(events.CrcMismatchArrived(stream.leader_stream_id, message))

    def send_down(self, stream: Stream, said: OpenAnswer | Shipment) -> None:
        """From the leader to the follower, in as many messages as it takes."""
        leader = stream.leader
        for data in to_messages(said, self.weather.piece_bytes):
            stream.down.put(stream.follower.run, stream.follower_life, self._arrive_down, stream, data)
        if isinstance(said, Shipment):
            shipped = events.Shipped(stream.leader_stream_id, said.next_index, len(said.raw))
            self.schedule.later(self.random.randint(0, MILLISECOND), leader.run, leader.life, leader.step, shipped)

    def _arrive_down(self, stream: Stream, data: bytes) -> None:
        follower, stream_id = stream.follower, stream.follower_stream_id
        if stream_id not in follower.upstreams:
            return
        try:
            said = from_message(data)
            if isinstance(said, OpenAnswer):
                follower.step(events.OpenAnswered(stream_id, said))
                return
            raw, last_epoch = stream.assembler.feed(said.raw)
        except BadMessage:
            self.close_stream(follower, stream)
            follower.step(events.StreamClosed(stream_id))
            return
        positions = said.positions
        follower.step(events.FramesArrived(stream_id, raw, last_epoch, positions.commit_index, positions.durable_index))

    # Snapshots

    def fetch(
        self, follower: End, action: actions.FetchSnapshot, number: int | None, arrive: Callable[..., None]
    ) -> None:
        """Ask the leader for a chunk, or for the manifest; `arrive` with None where it does not come."""
        leader = self.ends[action.leader_id]
        route, back = (follower.node_id, leader.node_id), (leader.node_id, follower.node_id)

        def answer() -> None:
            data = None
            if leader.runs and route not in self.cut and back not in self.cut:
                data = leader.snapshot_part(action.index, number)
            took = self.delay(back) if data is not None else REDIAL_US
            self.schedule.later(took, follower.run, follower.life, arrive, action, data)

        self.schedule.later(self.delay(route), answer)

    def close_stream(self, closer: End, stream: Stream) -> None:
        """One end hangs up; the other hears so behind what is on its way."""
        if closer is stream.follower:
            closer.upstreams.pop(stream.follower_stream_id, None)
            stream.up.put(stream.leader.run, stream.leader_life, self._leader_hears, stream)
        else:
            closer.downstreams.pop(stream.leader_stream_id, None)
            stream.down.put(stream.follower.run, stream.follower_life, self._follower_hears, stream)
        if stream in self.streams:
            self.streams.remove(stream)

    def _break_stream(self, stream: Stream, delay: int) -> None:
        """Both ends hear, each in its time, that the connection is gone; what was on its way is lost."""
        stream.up.broken = stream.down.broken = True
        if stream in self.streams:
            self.streams.remove(stream)
        later = self.schedule.later
        later(delay, stream.leader.run, stream.leader_life, self._leader_hears, stream)
        later(delay, stream.follower.run, stream.follower_life, self._follower_hears, stream)

    def break_streams(self, node: End) -> None:
        """All streams of a node end."""
        for stream in list(self.streams):
            if node in (stream.follower, stream.leader):
                self._break_stream(stream, RESET_US)

    def _leader_hears(self, stream: Stream) -> None:
        if stream.leader.downstreams.pop(stream.leader_stream_id, None) is not None:
            stream.leader.step(events.StreamClosed(stream.leader_stream_id))

    def _follower_hears(self, stream: Stream) -> None:
        if stream.follower.upstreams.pop(stream.follower_stream_id, None) is not None:
            stream.follower.step(events.StreamClosed(stream.follower_stream_id))
