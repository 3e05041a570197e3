"""What a node does for a stranger who speaks the peers' protocol: the table of SECURITY.md, made by running it.

A cluster of three whose third node is down is attacked three times: with a peer secret that the stranger does not know;
without one, under a node id that is no member's; and without one under the id and the disk of the member that is down,
which any process of the same machine can do. In the first two nothing may change: no promise file, epoch, leader or
state. In the third no node halts, but for what its own or another member's disk is said to hold, and the cluster goes
on when the stranger stops.
"""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType

from quire.cluster.config.serve import ServeConfig
from quire.cluster.data_dir.genesis import make_genesis
from quire.cluster.node.views.status import node_status
from quire.log import FEATURES, pack
from quire.replication.core.members import Member, Members, Role
from quire.replication.core.messages import (
    Ack,
    Campaign,
    CrcMismatch,
    GenesisOffer,
    Heartbeat,
    HeartbeatEcho,
    LagReport,
    Open,
    PositionReport,
    PreVote,
    VoteRequest,
)
from quire.replication.net.hello import LINK_FAILURES, NO_CLUSTER, PATHS, PeerInfo, PeerRefused
from quire.replication.net.sockets import HELLO_TIMEOUT_S
from quire.replication.net.wire import MAX_U64, encode
from tests.cluster.conditions import replica_of
from tests.cluster.running import RunningCluster, RunningNode, applied_index, free_addresses, running_cluster, started
from tests.cluster.strangers import CLOSED, DEADLINE_S, NOTHING, Stranger, answer_on
from tests.packed import unpacked
from tests.tuned import tuned

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full]

PAGE = Path(__file__).parents[2] / "SECURITY.md"
ELECTION_TIMEOUT_MS = 2_000
DOWN = "n3"
INVENTED = 300
SILENT = 70


Attack = Callable[[Stranger], Awaitable[str]]
ATTACKS: dict[str, Attack] = {}


def attack(says: str) -> Callable[[Attack], Attack]:
    """A row of the table."""

    def add(run: Attack) -> Attack:
        ATTACKS[says] = run
        return run

    return add


async def first_message(stranger: Stranger, data: bytes, compress: int | None = None) -> str:
    """Answer each kind of challenge with this, at every node."""
    done = set[str]()
    for node_id in stranger.cluster.nodes:
        for purpose in PATHS:
            path = PATHS[purpose]
            async with stranger.opened(node_id, path) as socket:
                await socket.receive()  # The challenge.
                try:
                    await socket.send_bytes(data, compress)
                except (ConnectionError, RuntimeError):
                    done.add(CLOSED)
                    continue
                done.add(await answer_on(socket))
    assert len(done) == 1, done
    return done.pop()


@attack("a first message of 1 MiB")
async def large_hello(stranger: Stranger) -> str:
    return await first_message(stranger, b"\xdd\x00\x0f\xff\xf0" + b"\x80" * 1048560)


@attack("a first message of 10,000 empty maps")
async def many_maps(stranger: Stranger) -> str:
    return await first_message(stranger, b"\xdc\x27\x10" + b"\x80" * 10_000)


@attack("a compressed first message")
async def compressed_hello(stranger: Stranger) -> str:
    return await first_message(stranger, bytes(1 << 20), compress=15)


@attack(f"{SILENT} connections that never finish their hello")
async def silent_hellos(stranger: Stranger) -> str:
    """A member's hello is answered beside them, and each of them ends."""
    nodes = list(stranger.cluster.nodes)
    url = f"http://{stranger.cluster.address(nodes[0])}{PATHS['peer']}"
    silent = [await stranger.cluster.session.ws_connect(url) for _ in range(SILENT)]
    member = replica_of(stranger.cluster, nodes[1]).network
    for link in list(member._links.values()):  # pyright: ignore[reportPrivateUsage]
        link.hang_up()
    await linked(stranger.cluster)
    async with asyncio.timeout(HELLO_TIMEOUT_S + DEADLINE_S):
        for socket in silent:
            while (await socket.receive()).type not in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.ERROR):
                pass
    return "oldest closed first, each after 5 s"


async def linked(cluster: RunningCluster) -> None:
    """Wait until every running node has its link to every other."""
    async with asyncio.timeout(DEADLINE_S):
        for node_id in cluster.nodes:
            others = set(cluster.nodes) - {node_id}
            while not others <= set(replica_of(cluster, node_id).core.status().links):  # noqa: ASYNC110
                await asyncio.sleep(0)


# After the hello, on the links


@attack("a vote request of epoch 2^64-1")
async def vote_of_the_last_epoch(stranger: Stranger) -> str:
    promise = replace(stranger.promise(), epoch=MAX_U64)
    return await stranger.tell(encode(VoteRequest(promise, stranger.end)))


@attack("a vote request of an epoch 2^32 + 1 above")
async def vote_of_a_far_epoch(stranger: Stranger) -> str:
    return await stranger.tell(encode(VoteRequest(stranger.promise((1 << 32) + 1), stranger.end)))


@attack("a vote request of the next epoch, with the longest log")
async def vote_of_the_next_epoch(stranger: Stranger) -> str:
    return await stranger.moves(encode(VoteRequest(stranger.promise(1), stranger.end)), "promised: another election")


@attack("a pre-vote with the longest log")
async def pre_vote(stranger: Stranger) -> str:
    return await stranger.tell(encode(PreVote(1, stranger.end, None)))


@attack("an order to campaign, as if by the leader")
async def campaign(stranger: Stranger) -> str:
    leader = replica_of(stranger.cluster, stranger.leader).core.leading_promise
    return await stranger.tell(encode(Campaign(leader)))


@attack("a heartbeat of the current epoch")
async def heartbeat(stranger: Stranger) -> str:
    said = await stranger.tell(encode(Heartbeat(stranger.promise(), 1, time.time_ns() // 1000)))
    if stranger.is_member:
        for running in stranger.cluster.nodes.values():
            assert any("claims to lead epoch" in alarm for alarm in node_status(running.node)["alarms"])
        return f"{said}; an alarm that lasts"
    return said


@attack("a heartbeat of the next epoch")
async def heartbeat_of_the_next_epoch(stranger: Stranger) -> str:
    beat = encode(Heartbeat(stranger.promise(1), 1, time.time_ns() // 1000))
    return await stranger.moves(beat, "followed until it is silent: another election")


@attack("a heartbeat of epoch 2^63")
async def heartbeat_of_a_far_epoch(stranger: Stranger) -> str:
    return await stranger.tell(encode(Heartbeat(replace(stranger.promise(), epoch=1 << 63), 1, 1)))


@attack("an echo that holds the next epoch")
async def echo(stranger: Stranger) -> str:
    said = encode(HeartbeatEcho(stranger.epoch, 1, stranger.epoch + 1))
    return await stranger.moves(said, "the leader steps down: another election")


@attack("an echo that holds epoch 2^64-1")
async def echo_of_the_last_epoch(stranger: Stranger) -> str:
    return await stranger.tell(encode(HeartbeatEcho(stranger.epoch, 1, MAX_U64)))


@attack("a genesis frame of another cluster, to a formed node")
async def genesis(stranger: Stranger) -> str:
    return await stranger.tell(encode(GenesisOffer(other_genesis(stranger.me), committed=True)))


@attack("positions and lags of 2^64-1")
async def positions(stranger: Stranger) -> str:
    position, lag = PositionReport(MAX_U64, MAX_U64, bytes(16)), LagReport(MAX_U64, MAX_U64, MAX_U64)
    return await stranger.tell(encode(position), encode(lag))


@attack(f"{INVENTED} invented node ids")
async def invented_ids(stranger: Stranger) -> str:
    """`/status` has none of them, whatever they are answered."""
    done = set[str]()
    for number in range(INVENTED):
        me = replace(stranger.me, node_id=f"invented-{number}", disk_id=secrets.token_bytes(16))
        done.add(await stranger.tell(encode(PositionReport(1, 1, bytes(16))), me=me))
    for node_id in stranger.cluster.nodes:
        assert b"invented" not in (await stranger.cluster.ask(node_id, "GET", "/status")).body
        assert b"invented" not in (await stranger.cluster.ask(node_id, "GET", "/metrics")).body
    assert len(done) == 1, done
    return done.pop()


@attack("a hello whose address is `127.0.0.1:PORT/internal/delete?`")
async def address_with_a_path(stranger: Stranger) -> str:
    async with listening_stranger() as (port, dials):
        me = replace(stranger.me, address=f"127.0.0.1:{port}/internal/delete?")
        said = await stranger.tell(me=me)
        await another_second(stranger.cluster)
        assert not dials
    return said


@attack("a hello with another address than the member's")
async def another_address(stranger: Stranger) -> str:
    async with listening_stranger() as (port, dials):
        said = await stranger.tell(me=replace(stranger.me, address=f"127.0.0.1:{port}"))
        await another_second(stranger.cluster)
        assert not dials
    return said if said != NOTHING else "admitted, not dialled there"


@attack("a copy of a running member")
async def copy_of_a_member(stranger: Stranger) -> str:
    """The disk of a member that runs, with another incarnation: to the other node, since no node talks to itself."""
    copied, other = list(stranger.cluster.nodes)[1::-1]
    me = replica_of(stranger.cluster, copied).core.state.me
    who = replace(stranger.me, disk_id=me.disk_id)
    who = replace(who, node_id=me.node_id if stranger.is_member else who.node_id)
    try:
        async with stranger.dialled(other, me=who):
            return "admitted"
    except PeerRefused as error:
        return f"hello refused: `{error.code}`"


# Streams and snapshots


@attack("an opening of the log as a follower")
async def open_log(stranger: Stranger) -> str:
    return await on_stream(stranger, stranger.opening(), "the log is sent: it can be read")


@attack("an opening with epochs of 2^64-1")
async def open_far(stranger: Stranger) -> str:
    opening = replace(stranger.opening(), epochs=((MAX_U64, MAX_U64),), highest_index=MAX_U64, durable_index=MAX_U64)
    return await on_stream(stranger, opening, "")


@attack("a report that a frame of the leader's differs")
async def mismatch(stranger: Stranger) -> str:
    """Rule 8 believes a voter's disk: the leader, whose own frame verifies, halts, and says why. It is restarted."""
    leader, report = stranger.leader, encode(CrcMismatch(1, 0xBAD))
    said = await on_stream(stranger, stranger.opening(), "the leader halts (rule 8)", report)
    if stranger.is_member:
        await halted(stranger.cluster.nodes[leader], "both verify")
        await stranger.cluster.restart(leader)
    return said


@attack("an acknowledgement of what it does not have")
async def acknowledge(stranger: Stranger) -> str:
    leader = replica_of(stranger.cluster, stranger.leader).core
    assert leader.leading is not None
    end = leader.state.log.highest_index
    ack = encode(Ack(end, end, end, bytes(16)))
    return await on_stream(stranger, stranger.opening(), "counted as the member's", ack)


async def halted(running: RunningNode, why: str) -> None:
    """Wait until a node halts, for this reason."""
    async with asyncio.timeout(DEADLINE_S):
        while running.node.health.failure is None:  # noqa: ASYNC110  # Nothing tells.
            await asyncio.sleep(0)
    assert why in str(running.node.health.failure)


async def on_stream(stranger: Stranger, opening: Open, believed: str, *more: bytes) -> str:
    try:
        async with stranger.dialled(stranger.leader, "stream") as socket:
            await socket.send_bytes(encode(opening))
            for data in more:
                await socket.send_bytes(data)
            said = await answer_on(socket)
            return believed or said
    except PeerRefused as error:
        return f"hello refused: `{error.code}`"
    except LINK_FAILURES:
        return CLOSED


@attack("a request for a snapshot")
async def snapshot(stranger: Stranger) -> str:
    reply = await stranger.cluster.ask(stranger.leader, "POST", "/admin/snapshot")
    assert reply.status == 200, reply
    index = reply.document["index"]
    try:
        async with stranger.dialled(stranger.leader, "snapshot") as socket:
            await socket.send_bytes(pack([index, None]))
            async with asyncio.timeout(DEADLINE_S):
                assert unpacked((await socket.receive()).data)[0] > 0
            return "it is sent: the state can be read"
    except PeerRefused as error:
        return f"hello refused: `{error.code}`"


# A node that waits to be formed


@attack("a genesis frame, to a node that waits to be formed")
async def capture(stranger: Stranger) -> str:
    """The node of another cluster, whose other member is down."""
    addresses: dict[str, str] = dict(zip(("w1", "w2"), free_addresses(2), strict=True))
    config = tuned(
        ServeConfig,
        node="w1",
        listen=addresses["w1"],
        members=addresses,
        data_dir=stranger.folder / f"waiting-{stranger.is_member}-{stranger.secret is None}",
        peer_secret_file=None if stranger.secret is None else stranger.folder / "secret",
    )
    waiting = await started(config)
    cluster = RunningCluster(stranger.cluster.session, {"w1": waiting})
    who = replace(stranger.me, cluster_id=NO_CLUSTER, node_id="w2" if stranger.is_member else stranger.me.node_id)
    frame = other_genesis(who)
    try:
        said = await replace(stranger, cluster=cluster, me=who).tell(encode(GenesisOffer(frame, committed=True)))
        if stranger.is_member:
            async with asyncio.timeout(DEADLINE_S):
                while waiting.node.formed is None:  # noqa: ASYNC110  # Nothing tells.
                    await asyncio.sleep(0)
            return "believed: it joins the stranger's cluster"
        assert waiting.node.formed is None
        assert not (config.data_dir / "genesis").exists()
        return said
    finally:
        await waiting.stop()


def other_genesis(me: PeerInfo) -> bytes:
    """The genesis frame of a cluster of the stranger's own, for the machine of the nodes."""
    config = ServeConfig(node="w2", listen="127.0.0.1:1", members={"w2": "127.0.0.1:1"}, data_dir=Path("unused"))
    members = Members((Member(me.node_id, me.disk_id, "127.0.0.1:1", Role.VOTER),))
    return make_genesis(members, ("arithmetic", 1), 42, config)


# The columns


@asynccontextmanager
async def listening_stranger() -> AsyncGenerator[tuple[int, list[str]]]:
    """A port, and who called there."""
    calls: list[str] = []

    def called(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(called, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], calls


async def another_second(cluster: RunningCluster) -> None:
    """Wait until the leader has sent a second's heartbeats: every peer that would be dialled was dialled by then."""
    leader = next(running for running in cluster.nodes.values() if running.node.leadership.is_leader)
    until = node_status(leader.node)["clock"] + 1_000_000
    while node_status(leader.node)["clock"] < until:  # noqa: ASYNC110  # Nothing tells.
        await asyncio.sleep(0)


COLUMNS = ("a secret", "no secret, no member's id", "no secret, a member's id")


@asynccontextmanager
async def attacked(folder: Path, column: str) -> AsyncGenerator[Stranger]:
    """A cluster whose third node is down, and a stranger."""
    settings: dict[str, Any] = {"election_timeout_ms": ELECTION_TIMEOUT_MS}
    if column == COLUMNS[0]:
        settings["peer_secret_file"] = secret_file(folder)
    async with running_cluster(folder, 3, **settings) as cluster:
        await cluster.commands("n1", ["add", 1])
        down = replica_of(cluster, DOWN).core.state.me
        await cluster.stop(DOWN)
        components = cluster.nodes["n1"].node.formed
        assert components is not None
        is_member = column == COLUMNS[2]
        name, disk = (DOWN, down.disk_id) if is_member else ("stranger", secrets.token_bytes(16))
        me = PeerInfo(components.genesis.cluster_id, name, disk, 4711, "127.0.0.1:9", FEATURES)
        yield Stranger(cluster, folder, me, b"not the secret at all" if column == COLUMNS[0] else None, is_member)
        # The stranger stops: the member comes back, and the cluster goes on.
        config = config_of_down(cluster.nodes["n1"].config, folder)
        if is_member:
            await return_after_a_lie(cluster, config)
        cluster.nodes[DOWN] = await started(config)
        await cluster.ready()
        assert (await cluster.commands("n1", ["add", 1]))["results"]
        await equal(cluster)


async def return_after_a_lie(cluster: RunningCluster, config: ServeConfig) -> None:
    """A member whose acknowledgement was made up halts when it returns, until another node leads (SECURITY.md)."""
    returned = await started(config)
    await halted(returned, "durable records are gone")
    await returned.stop()
    led = next(node_id for node_id, running in cluster.nodes.items() if running.node.leadership.is_leader)
    await cluster.lead("n2" if led == "n1" else "n1")


def secret_file(folder: Path) -> Path:
    """A file with a secret."""
    file = folder / "secret"
    file.write_text(secrets.token_hex(32) + "\n")
    file.chmod(0o600)
    return file


def config_of_down(config: ServeConfig, folder: Path) -> ServeConfig:
    """The configuration of the node that is down."""
    return config.model_copy(update={"node": DOWN, "listen": config.members[DOWN], "data_dir": folder / DOWN})


async def equal(cluster: RunningCluster) -> None:
    """Wait until all nodes have applied the same."""
    async with asyncio.timeout(DEADLINE_S):
        while len({running.node.components.applying.digest for running in cluster.nodes.values()}) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)


def held(cluster: RunningCluster) -> dict[str, object]:
    """What no stranger may change: of each node the promise file, the state, the epoch and the leader."""
    return {
        node_id: (
            (running.config.data_dir / "promise").read_bytes(),
            running.node.components.applying.digest,
            applied_index(running.node),
            running.node.leadership.role.epoch,
            running.node.leadership.leader_id,
        )
        for node_id, running in cluster.nodes.items()
    }


async def outcomes(folder: Path, column: str) -> dict[str, str]:
    """What comes of each attack."""
    done: dict[str, str] = {}
    async with attacked(folder, column) as stranger:
        for says, run in ATTACKS.items():
            before = held(stranger.cluster)
            done[says] = await run(stranger)
            for node_id, running in stranger.cluster.nodes.items():
                assert running.node.health.failure is None, (says, node_id, running.node.health.failure)
            if not stranger.is_member:
                assert held(stranger.cluster) == before, says
            await stranger.cluster.ready()
            assert (await stranger.cluster.commands(stranger.leader, ["add", 1]))["results"], says
            await equal(stranger.cluster)
    return done


def table(by_column: dict[str, dict[str, str]]) -> str:
    """The table of the page."""
    cells = [["attack", *by_column], ["---"] * (1 + len(by_column))]
    cells += [[says, *(done[says] for done in by_column.values())] for says in ATTACKS]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


async def test_the_page_says_what_a_node_does_for_a_stranger(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    by_column = {column: await outcomes(tmp_path_factory.mktemp("attacked"), column) for column in COLUMNS}
    said = "".join(capfd.readouterr()) + caplog.text
    assert "Traceback" not in said, said
    assert "never retrieved" not in said, said
    made = table(by_column)
    found = re.search(r"^\| attack .*?\n\n", PAGE.read_text() + "\n", re.DOTALL | re.MULTILINE)
    assert found is not None, made
    assert found[0] == made + "\n", made
