"""Links and streams between simulated nodes, and the faults of their network.

One connection keeps its order, as TCP does. Different connections race with one another, including an old and a new one
between the same two nodes. A cut direction holds messages back. When it heals, a connection either continues, with
every message late and in order, or has broken: its messages are lost, and it is dialled again. Some messages arrive
twice, the second time late and out of order, as on a replaced connection.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from quire.log import FEATURES
from quire.replication.core import actions, events
from quire.replication.core.messages import (
    Ack,
    CoreMessage,
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

from .clock import MILLISECOND, Schedule

REDIAL_US = 60 * MILLISECOND
RESET_US = 2 * MILLISECOND
GIVES_FETCH_UP_US = 1_000 * MILLISECOND


class End(Protocol):
    """A node as the network sees it."""

    node_id: str
    disk_id: bytes
    life: int
    history: bytes
    upstreams: "dict[int, Stream]"
    downstreams: "dict[int, Stream]"

    @property
    def runs(self) -> bool:
        """Whether it has a process."""
        ...

    @property
    def code(self) -> bytes:
        """The fingerprint of its machine's code."""
        ...

    def run(self, life: int, call: Callable[..., None], *arguments: object) -> None:
        """Call in its process with that number, if that still runs."""
        ...

    def step(self, event: events.Event) -> None:
        """Pass an event to its driver."""
        ...

    def snapshot_part(self, index: int, number: int | None) -> bytes | None:
        """A chunk of its snapshot or, without a number, the manifest; None if it has no such snapshot."""
        ...

    def next_stream_id(self) -> int:
        """A new number for a stream that a follower opened."""
        ...


@dataclass
class Weather:
    """How the network behaves without faults: delays in microseconds, chances in [0, 1]."""

    lowest_us: int = 200
    highest_us: int = 3_000
    late_chance: float = 0.02
    late_us: int = 60_000
    double_chance: float = 0.01
    break_chance: float = 0.5
    piece_bytes: int = 1 << 20
    max_frame_bytes: int = 1 << 20


class Pipe:
    """One direction of one connection: delivers in order, or not at all."""

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self._network = network
        self._route = (source, target)
        self._clear_at = 0
        self._waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.broken = False
        self.silent = False
        """It drops everything, and neither end notices."""

    def put(self, arrive: Callable[..., None], *arguments: object) -> None:
        """Deliver by calling `arrive` with the arguments, after a delay."""
        if self.silent:
            return
        schedule = self._network.schedule
        self._clear_at = max(self._clear_at, schedule.now + self._network.delay(self._route))
        schedule.at(self._clear_at, self._come_out, arrive, arguments)

    def _come_out(self, arrive: Callable[..., None], arguments: tuple[object, ...]) -> None:
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
        """Whether its direction is cut."""
        return self._route in self._network.cut

    def resume(self) -> None:
        """Deliver what a cut held back, in order."""
        waiting, self._waiting = self._waiting, []
        for arrive, arguments in waiting:
            self.put(arrive, *arguments)


@dataclass(eq=False)
class Link:
    """One node's connection to another for `/peer`. Each time it is dialled it gets a new `pipe`."""

    source: End
    target: End
    pipe: Pipe | None = None
    known: Pipe | None = None
    """The pipe that the source knows of. A paused source learns of a new pipe, and uses it, when it is resumed."""
    target_life: int = 0
    source_life: int = 0
    dialled_by: int = 0
    """The number of the source's process that is about to dial; 0: none."""


@dataclass(eq=False)
class Stream:
    """A `/peer/stream` connection: the follower's end and the leader's."""

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
    fetches_nothing: set[str] = field(default_factory=set)
    """Nodes whose requests for snapshots are never answered: they give up each request after a while."""

    def delay(self, route: tuple[str, str]) -> int:
        """The delay of a message sent now, in microseconds."""
        weather, random = self.weather, self.random
        base = random.randint(weather.lowest_us, weather.highest_us) + self.slow.get(route, 0)
        if random.random() < weather.late_chance:
            base += random.randint(0, weather.late_us)
        return base

    # Cuts

    def begin_cut(self, pairs: Iterable[tuple[str, str]], *, breaks: bool = True) -> None:
        """Cut the direction from the first to the second node of each pair. If `breaks`, connections may break."""
        break_chance = self.weather.break_chance if breaks else 0.0
        latest = self.random.choice((2 * RESET_US, 300 * MILLISECOND))
        for pair in pairs:
            self.cut[pair] = self.cut.get(pair, 0) + 1
            link = self.links[pair]
            if link.pipe is not None and self.random.random() < break_chance:
                link.pipe.broken = True
                self.schedule.later(self.random.randint(RESET_US, latest), self._link_lost, link, link.pipe)
        for stream in self.streams:
            if (stream.up.is_cut or stream.down.is_cut) and self.random.random() < break_chance:
                self._break_stream(stream, self.random.randint(RESET_US, latest))

    def end_cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """End one cut of each pair."""
        for pair in pairs:
            count = self.cut.pop(pair, 0) - 1
            if count > 0:
                self.cut[pair] = count
        held_up, self.held_up = self.held_up, []
        for pipe in held_up:
            if pipe.is_cut:
                self.held_up.append(pipe)
            elif not pipe.broken:
                pipe.resume()

    # Flows that stay

    def silence(self, node: End, *, links: bool, streams: bool) -> None:
        """From now on, a node's existing connections drop everything, in both directions. New ones work."""
        for link in self.links.values():
            if links and link.pipe is not None and node in (link.source, link.target):
                link.pipe.silent = True
        for stream in self.streams:
            if streams and node in (stream.follower, stream.leader):
                stream.up.silent = stream.down.silent = True

    def miss_pongs(self, pairs: Iterable[tuple[str, str]], after_us: int) -> None:
        """Both ends of these links stop getting pongs: each closes its link and dials again."""
        for source, target in pairs:
            for link in (self.links[source, target], self.links[target, source]):
                if link.pipe is not None:
                    took = after_us + self.random.randint(0, after_us // 4)
                    self.schedule.later(took, self._link_lost, link, link.pipe)

    # Links

    def came_up(self, node: End) -> None:
        """A node started: it dials every other node, and they dial it."""
        for other in self.ends.values():
            if other is not node:
                for link in (self.links[(node.node_id, other.node_id)], self.links[(other.node_id, node.node_id)]):
                    self._redial(link, self.random.randint(0, REDIAL_US))

    def went_down(self, node: End, *, noticed_at_once: bool) -> None:
        """A node stopped. Its peers notice at once (a killed process) or late (a power loss)."""
        soonest, latest = (RESET_US, 2 * RESET_US) if noticed_at_once else (50 * MILLISECOND, 500 * MILLISECOND)
        for (source, target), link in self.links.items():
            if node.node_id == target and link.pipe is not None:
                link.pipe.broken = True
                self.schedule.later(self.random.randint(soonest, latest), self._link_lost, link, link.pipe)
            elif node.node_id == source:
                link.pipe = None  # Messages in flight still arrive.
        for stream in list(self.streams):
            if node in (stream.follower, stream.leader):
                self._break_stream(stream, self.random.randint(soonest, latest))

    def reset(self, pairs: Iterable[tuple[str, str]]) -> None:
        """End links and dial them again; messages in flight race those of the new connections."""
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
        of_one_history = source.history == target.history
        if not target.runs or not of_one_history or route in self.cut or route[::-1] in self.cut:
            self._redial(link, REDIAL_US)
            return
        link.pipe = Pipe(self, *route)
        link.source_life, link.target_life = source.life, target.life
        event = events.LinkUp(target.node_id, target.disk_id, FEATURES, target.code)
        source.run(source.life, self._link_up, link, link.pipe, event)

    @staticmethod
    def _link_up(link: Link, pipe: Pipe, event: events.LinkUp) -> None:
        link.known = pipe
        link.source.step(event)

    def send(self, source: End, node_id: str, message: PeerMessage) -> None:
        """Send a message on a link; it is lost if there is none."""
        if isinstance(message, PositionReport | LagReport | GenesisOffer):
            return  # For status and lag only: no rule depends on these.
        link = self.links.get((source.node_id, node_id))
        if link is None or link.pipe is None or link.pipe is not link.known:
            return
        data = encode(message)
        arguments = (link.target, link.target_life, source.node_id, source.disk_id, data)
        link.pipe.put(self._arrive, *arguments)
        if self.random.random() < self.weather.double_chance:
            late_us = self.random.randint(0, 2 * self.weather.late_us)
            self.schedule.later(late_us, self._arrive_again, link.pipe, *arguments)

    def _arrive_again(self, pipe: Pipe, target: End, life: int, source: str, disk_id: bytes, data: bytes) -> None:
        """A message arrives a second time, out of order; not on a connection that drops everything."""
        if not pipe.silent and not pipe.is_cut:
            self._arrive(target, life, source, disk_id, data)

    def _arrive(self, target: End, life: int, source: str, disk_id: bytes, data: bytes) -> None:
        message = decode_peer(data)
        if not isinstance(message, CoreMessage):
            raise AssertionError(f"{message} is not for the core")
        target.run(life, target.step, events.Received(source, disk_id, message))

    # Streams

    def dial_stream(self, follower: End, action: actions.DialStream) -> None:
        """Open a stream to the leader; if a direction is cut, that fails after a delay."""
        leader = self.ends[action.leader_id]
        route, back = (follower.node_id, leader.node_id), (leader.node_id, follower.node_id)
        took = self.delay(route) + self.delay(back)
        is_refused = not leader.runs or leader.history != follower.history
        if is_refused or route in self.cut or back in self.cut:
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
        """Send from the follower to the leader."""
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

    def send_down(self, stream: Stream, said: OpenAnswer | Shipment) -> bool:
        """Send from the leader to the follower, in one or more messages; return whether it was taken at once."""
        leader = stream.leader
        for data in to_messages(said, self.weather.piece_bytes):
            stream.down.put(stream.follower.run, stream.follower_life, self._arrive_down, stream, data)
        if self.random.randrange(2):
            return True
        if isinstance(said, Shipment):
            shipped = events.Shipped(stream.leader_stream_id, said.next_index, len(said.raw))
            self.schedule.later(self.random.randint(0, MILLISECOND), leader.run, leader.life, leader.step, shipped)
        return False

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
        """Ask the leader for a chunk or, without a number, the manifest. `arrive` gets None if there is no answer."""
        leader = self.ends[action.leader_id]
        route, back = (follower.node_id, leader.node_id), (leader.node_id, follower.node_id)

        def answer() -> None:
            data = None
            if follower.node_id in self.fetches_nothing:
                self.schedule.later(GIVES_FETCH_UP_US, follower.run, follower.life, arrive, action, None)
                return
            if leader.runs and leader.history == follower.history and route not in self.cut and back not in self.cut:
                data = leader.snapshot_part(action.index, number)
            took = self.delay(back) if data is not None else REDIAL_US
            self.schedule.later(took, follower.run, follower.life, arrive, action, data)

        self.schedule.later(self.delay(route), answer)

    def close_stream(self, closer: End, stream: Stream) -> None:
        """Close one end; the other notices after the messages in flight."""
        if closer is stream.follower:
            closer.upstreams.pop(stream.follower_stream_id, None)
            stream.up.put(stream.leader.run, stream.leader_life, self._leader_notices, stream)
        else:
            closer.downstreams.pop(stream.leader_stream_id, None)
            stream.down.put(stream.follower.run, stream.follower_life, self._follower_notices, stream)
        if stream in self.streams:
            self.streams.remove(stream)

    def _break_stream(self, stream: Stream, delay: int) -> None:
        """Break a connection: messages in flight are lost, and both ends notice, each in its own time."""
        stream.up.broken = stream.down.broken = True
        if stream in self.streams:
            self.streams.remove(stream)
        later = self.schedule.later
        later(delay, stream.leader.run, stream.leader_life, self._leader_notices, stream)
        later(delay, stream.follower.run, stream.follower_life, self._follower_notices, stream)

    def break_streams(self, node: End) -> None:
        """Break all streams of a node."""
        for stream in list(self.streams):
            if node in (stream.follower, stream.leader):
                self._break_stream(stream, RESET_US)

    def _leader_notices(self, stream: Stream) -> None:
        if stream.leader.downstreams.pop(stream.leader_stream_id, None) is not None:
            stream.leader.step(events.StreamClosed(stream.leader_stream_id))

    def _follower_notices(self, stream: Stream) -> None:
        if stream.follower.upstreams.pop(stream.follower_stream_id, None) is not None:
            stream.follower.step(events.StreamClosed(stream.follower_stream_id))
