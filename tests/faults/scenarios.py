"""The scenarios, by name. `tests/faults/running.py` runs them, `tests/verdict` judges them."""

from tests.faults.actions import (
    CONTROL,
    FOLLOWER,
    FOURTH,
    LEADER,
    OTHER,
    STREAM,
    THIRD,
    AwaitInstall,
    ClientsSaid,
    Cut,
    CutClients,
    Heal,
    Kill,
    LeaveBehind,
    Pause,
    Said,
    SetClock,
    Stop,
    Transfer,
    among,
    between,
    narrow,
    of,
    silent,
    slow,
    to,
)
from tests.faults.permanent import PERMANENT_FAULTS, TEN_YEARS_S
from tests.faults.scenario import Scenario, Shape, Step, scenario

THREE = (LEADER, FOLLOWER, OTHER)
FIVE = (LEADER, FOLLOWER, OTHER, THIRD, FOURTH)
FOLLOWERS = (FOLLOWER, OTHER)
ALL = among(THREE)
ALL_OF_FIVE = among(FIVE)

FIVE_NODES = Shape(size=5)
EXPIRING = Shape(expiring=True)

LINKS = (
    scenario("latency with jitter on every link", slow(ALL, 20, 10)),
    scenario("latency with jitter on the leader's links", slow(between([LEADER], FOLLOWERS), 80, 60)),
    scenario("a follower beyond the election timeout", slow(between([FOLLOWER], [LEADER, OTHER]), 1_500)),
    scenario("latency of streams alone", slow(ALL, 60, 30, STREAM)),
    scenario("narrow links everywhere", narrow(ALL, 256), bulk=True),
    scenario("a narrow stream to one follower", narrow(of(LEADER, FOLLOWER), 64, STREAM), bulk=True, lasting_s=3.0),
    scenario("a trickle of a stream to a follower", narrow(of(LEADER, OTHER), 8, STREAM), bulk=True, lasting_s=2.5),
    scenario(
        "a slow follower",
        narrow(of(LEADER, FOLLOWER), 1_000, STREAM),
        slow(between([LEADER], [FOLLOWER]), 30, 10),
        bulk=True,
        lasting_s=3.0,
    ),
    scenario(
        "slow closes, then a cut",
        Said(ALL, "slow_close", {"delay": 500}),
        Step(0.3, Cut(between([FOLLOWER], [LEADER, OTHER]))),
    ),
    scenario("every link of the leader reset", Said(between([LEADER], FOLLOWERS), "reset_peer", {"timeout": 0})),
    scenario("every link reset after a while", Said(ALL, "reset_peer", {"timeout": 400})),
    scenario("a follower's links time out", Said(between([FOLLOWER], [LEADER, OTHER]), "timeout", {"timeout": 300})),
    scenario(
        "bytes in slices on every link",
        Said(ALL, "slicer", {"average_size": 200, "size_variation": 100, "delay": 50}),
    ),
    scenario(
        "frames in slices",
        Said(of(LEADER, *FOLLOWERS), "slicer", {"average_size": 1_000, "size_variation": 900, "delay": 20}, STREAM),
        bulk=True,
    ),
    scenario(
        "streams that end inside a frame",
        Said(of(LEADER, *FOLLOWERS), "limit_data", {"bytes": 150_000}, STREAM),
        bulk=True,
    ),
    scenario("control links that end repeatedly", Said(ALL, "limit_data", {"bytes": 3_000}, CONTROL)),
)

# What the leader dials goes first: its followers have heard its last heartbeat when their own connections to it break,
# and take that for what it is. They elect another while it believes, for an election timeout, that it leads.
NOTICED = (
    Cut(of(LEADER, *FOLLOWERS)),
    Step(0.2, Cut(to(LEADER, *FOLLOWERS))),
)
NOTICED_BY_FOUR = (
    Cut(of(LEADER, FOLLOWER, OTHER, THIRD, FOURTH)),
    Step(0.2, Cut(to(LEADER, FOLLOWER, OTHER, THIRD, FOURTH))),
)

PARTITIONS = (
    scenario("the leader is cut off and missed at once", *NOTICED, lasting_s=2.0),
    scenario("the leader is cut off", Cut(between([LEADER], FOLLOWERS)), lasting_s=2.0),
    scenario("the leader falls silent", silent(between([LEADER], FOLLOWERS)), lasting_s=2.5),
    scenario("a follower is cut off", Cut(between([FOLLOWER], [LEADER, OTHER]))),
    scenario("a follower falls silent", silent(between([FOLLOWER], [LEADER, OTHER])), lasting_s=2.5),
    scenario("the leader is heard and hears nobody", silent(to(LEADER, *FOLLOWERS)), lasting_s=2.5),
    scenario("the leader hears and is heard by nobody", silent(of(LEADER, *FOLLOWERS)), lasting_s=2.5),
    scenario("a follower is heard and hears nobody", silent(to(FOLLOWER, LEADER, OTHER)), lasting_s=2.5),
    scenario("a follower hears and is heard by nobody", silent(of(FOLLOWER, LEADER, OTHER)), lasting_s=2.5),
    scenario("the leader is the bridge", Cut(between([FOLLOWER], [OTHER]))),
    scenario("a follower is the bridge", Cut(between([LEADER], [OTHER])), lasting_s=2.0),
    scenario("a follower is the bridge and nothing breaks", silent(between([LEADER], [OTHER])), lasting_s=2.5),
    scenario(
        "each dials one other alone",
        Cut(frozenset({(LEADER, FOLLOWER), (FOLLOWER, OTHER), (OTHER, LEADER)})),
        lasting_s=2.0,
    ),
    scenario("every link is cut", Cut(ALL), lasting_s=1.5),
    scenario("every link falls silent", silent(ALL), lasting_s=2.0),
    scenario(
        "the leader's links flap",
        *(
            Step(0.5 * flap + half, action)
            for flap in range(4)
            for half, action in ((0.0, Cut(between([LEADER], FOLLOWERS))), (0.25, Heal()))
        ),
        lasting_s=2.0,
    ),
    scenario(
        "a follower's links flap",
        *(
            Step(0.4 * flap + half, action)
            for flap in range(5)
            for half, action in ((0.0, Cut(between([FOLLOWER], [LEADER, OTHER]))), (0.2, Heal()))
        ),
        lasting_s=2.0,
    ),
    scenario(
        "one node after the other is cut off",
        Cut(between([LEADER], FOLLOWERS)),
        Step(0.7, Heal()),
        Step(0.7, Cut(between([FOLLOWER], [LEADER, OTHER]))),
        Step(1.4, Heal()),
        Step(1.4, Cut(between([OTHER], [LEADER, FOLLOWER]))),
        lasting_s=2.1,
    ),
    scenario(
        "a silent partition becomes another one",
        silent(between([LEADER], FOLLOWERS)),
        Step(1.5, Heal()),
        Step(1.5, silent(between([FOLLOWER], [LEADER, OTHER]))),
        lasting_s=3.0,
    ),
)

CHANNELS = (
    scenario(
        "control to a follower starves while the stream flows", silent(of(LEADER, FOLLOWER), CONTROL), lasting_s=2.5
    ),
    scenario(
        "the stream to a follower starves while control flows", silent(of(LEADER, FOLLOWER), STREAM), lasting_s=2.0
    ),
    scenario(
        "the leader's control starves while its streams flow", silent(of(LEADER, *FOLLOWERS), CONTROL), lasting_s=2.5
    ),
    scenario(
        "the leader's streams starve while its control flows", silent(of(LEADER, *FOLLOWERS), STREAM), lasting_s=2.0
    ),
    scenario("acks starve while heartbeats are echoed", silent(to(LEADER, *FOLLOWERS), STREAM), lasting_s=2.0),
    scenario("echoes starve while acks flow", silent(to(LEADER, *FOLLOWERS), CONTROL), lasting_s=2.5),
    scenario("control is cut everywhere while streams stay", Cut(ALL, CONTROL), lasting_s=2.0),
    scenario("streams are cut everywhere while control stays", Cut(ALL, STREAM)),
    scenario("control is narrow while streams are full", narrow(ALL, 2, CONTROL), bulk=True, lasting_s=2.0),
)

CLIENTS = (
    scenario("latency of clients", ClientsSaid(THREE, "latency", "downstream", {"latency": 60, "jitter": 40})),
    scenario(
        "clients are cut between request and answer",
        ClientsSaid(THREE, "timeout", "downstream", {"timeout": 0}),
        Step(0.8, CutClients(THREE)),
        lasting_s=1.2,
    ),
    scenario(
        "clients' connections are reset repeatedly",
        ClientsSaid(THREE, "reset_peer", "downstream", {"timeout": 250}),
    ),
    scenario("answers end in the middle", ClientsSaid(THREE, "limit_data", "downstream", {"bytes": 700})),
    scenario("clients do not reach the leader", CutClients((LEADER,))),
    scenario(
        "clients lose their answers as the leader is cut off",
        ClientsSaid(THREE, "timeout", "downstream", {"timeout": 300}),
        Cut(between([LEADER], FOLLOWERS)),
        lasting_s=2.0,
    ),
)

LEADERSHIP = (
    scenario("a transfer over slow links", slow(ALL, 60, 30), Step(0.3, Transfer(FOLLOWER))),
    scenario("a transfer to a node that is cut off", Cut(between([FOLLOWER], [LEADER])), Transfer(FOLLOWER)),
    scenario(
        "a transfer during which the leader is cut off",
        slow(between([LEADER], FOLLOWERS), 100),
        Step(0.2, Transfer(FOLLOWER)),
        Step(0.3, Cut(between([LEADER], FOLLOWERS))),
        lasting_s=2.0,
    ),
    scenario(
        "a transfer whose target falls silent",
        Transfer(FOLLOWER),
        silent(between([FOLLOWER], [LEADER, OTHER])),
        lasting_s=2.5,
    ),
    scenario("the leader is stopped over slow links", slow(ALL, 60, 30), Step(0.2, Stop(LEADER))),
    scenario("the leader is killed behind slow links", slow(ALL, 60, 30), Step(0.2, Kill(LEADER)), lasting_s=4.0),
    scenario("the leader is killed over cut streams", Cut(ALL, STREAM), Step(0.2, Kill(LEADER)), lasting_s=1.2),
    scenario("the leader is frozen and cut off", Pause(LEADER), Cut(between([LEADER], FOLLOWERS)), lasting_s=2.0),
    scenario(
        "a follower catches up over a narrow link",
        Cut(between([FOLLOWER], [LEADER, OTHER])),
        Step(1.5, Heal()),
        Step(1.5, narrow(of(LEADER, FOLLOWER), 256, STREAM)),
        bulk=True,
        lasting_s=3.0,
    ),
    scenario(
        "a follower is cut off again as it catches up",
        Cut(between([FOLLOWER], [LEADER, OTHER])),
        Step(1.0, Heal()),
        Step(1.2, Cut(between([FOLLOWER], [LEADER, OTHER]))),
        Step(1.6, Heal()),
        Step(1.8, Cut(between([FOLLOWER], [LEADER, OTHER]))),
        bulk=True,
        lasting_s=2.2,
    ),
)

OF_FIVE = (
    scenario("latency with jitter of five", slow(ALL_OF_FIVE, 20, 10), shape=FIVE_NODES),
    scenario("the leader of five is cut off", Cut(between([LEADER], FIVE)), lasting_s=2.0, shape=FIVE_NODES),
    scenario("the leader of five is cut off and missed at once", *NOTICED_BY_FOUR, lasting_s=2.0, shape=FIVE_NODES),
    scenario(
        "the leader keeps one follower of four",
        Cut(between([LEADER, FOLLOWER], [OTHER, THIRD, FOURTH])),
        lasting_s=2.0,
        shape=FIVE_NODES,
    ),
    scenario(
        "the leader keeps two followers of four",
        Cut(between([LEADER, FOLLOWER, OTHER], [THIRD, FOURTH])),
        shape=FIVE_NODES,
    ),
    scenario(
        "two pairs and a bridge", Cut(between([LEADER, FOLLOWER], [THIRD, FOURTH])), lasting_s=2.5, shape=FIVE_NODES
    ),
    scenario(
        "two, two and one",
        Cut(between([LEADER, FOLLOWER], [OTHER, THIRD, FOURTH])),
        Cut(between([OTHER, THIRD], [FOURTH])),
        lasting_s=2.0,
        shape=FIVE_NODES,
    ),
    scenario(
        "the leader of five is heard and hears nobody",
        silent(to(LEADER, FOLLOWER, OTHER, THIRD, FOURTH)),
        lasting_s=2.5,
        shape=FIVE_NODES,
    ),
    scenario("two of four followers are slow", slow(between([THIRD, FOURTH], FIVE), 200, 100), shape=FIVE_NODES),
    scenario(
        "two followers die as the leader is cut off",
        Kill(FOLLOWER),
        Kill(OTHER),
        Step(0.3, Cut(between([LEADER], FIVE))),
        lasting_s=1.5,
        shape=FIVE_NODES,
    ),
)

CLOCKS = (
    scenario(
        "the leader dies, and the clock of one that is left is 11 s ahead",
        SetClock(FOLLOWER, 11),
        Step(0.3, Kill(LEADER)),
        lasting_s=2.5,
    ),
    scenario("the leader's clock jumps ten years ahead", SetClock(LEADER, TEN_YEARS_S), Step(0.5, Kill(OTHER))),
    scenario(
        "a node whose clock is ten years ahead is asked to lead",
        SetClock(FOLLOWER, TEN_YEARS_S),
        Step(0.3, Transfer(FOLLOWER)),
    ),
    scenario("the leader's clock falls ten years back", SetClock(LEADER, -TEN_YEARS_S), Step(0.5, Transfer(FOLLOWER))),
)

BEHIND = (LeaveBehind(FOLLOWER), Heal())
FETCHING = (*BEHIND, narrow(of(LEADER, FOLLOWER), 6_000, STREAM), AwaitInstall(FOLLOWER))

INSTALLS = (
    scenario("a follower is left behind the log", *BEHIND, bulk=True, shape=EXPIRING),
    scenario(
        "a snapshot over a narrow link", *BEHIND, narrow(of(LEADER, FOLLOWER), 4_000, STREAM), bulk=True, shape=EXPIRING
    ),
    scenario(
        "connections that end inside a snapshot",
        *BEHIND,
        Said(of(LEADER, FOLLOWER), "limit_data", {"bytes": 6_000_000}, STREAM),
        lasting_s=3.0,
        bulk=True,
        shape=EXPIRING,
    ),
    scenario(
        "a follower is cut off during an install",
        *FETCHING,
        Cut(between([FOLLOWER], [LEADER, OTHER])),
        lasting_s=1.0,
        bulk=True,
        shape=EXPIRING,
    ),
    scenario(
        "the leader is cut off during an install",
        *FETCHING,
        Cut(between([LEADER], FOLLOWERS)),
        lasting_s=2.0,
        bulk=True,
        shape=EXPIRING,
    ),
    scenario(
        "the leader transfers leadership during an install",
        *FETCHING,
        Transfer(OTHER),
        bulk=True,
        shape=EXPIRING,
    ),
    scenario(
        "the leader is killed during an install",
        *FETCHING,
        Kill(LEADER),
        bulk=True,
        shape=EXPIRING,
    ),
    scenario(
        "a follower is killed during an install",
        *FETCHING,
        Kill(FOLLOWER),
        lasting_s=0.5,
        bulk=True,
        shape=EXPIRING,
    ),
)

KINDS: dict[str, tuple[Scenario, ...]] = {
    "slow, narrow and broken links": LINKS,
    "partitions": PARTITIONS,
    "control links or streams alone": CHANNELS,
    "clients' connections": CLIENTS,
    "transfers, stops and kills over bad links": LEADERSHIP,
    "wrong clocks": CLOCKS,
    "links of five nodes": OF_FIVE,
    "faults during an install": INSTALLS,
}
SCENARIOS: tuple[Scenario, ...] = tuple(each for kind in KINDS.values() for each in kind)

# `make test` runs these, all of one shape, so that they share a cluster.
OF_EACH_TEST = frozenset(
    {
        "streams that end inside a frame",
        "the leader falls silent",
    }
)

# One of each kind: the others differ by a place, a number or a channel, and `make soak-faults` runs them.
OF_TEST_ALL = OF_EACH_TEST | {
    "two, two and one",
    "the leader is heard and hears nobody",
    "a follower's links flap",
    "every link is cut",
    "the leader's control starves while its streams flow",
    "acks starve while heartbeats are echoed",
    "a follower is the bridge",
    "clients lose their answers as the leader is cut off",
    "clients are cut between request and answer",
    "answers end in the middle",
    "a transfer during which the leader is cut off",
    "slow closes, then a cut",
}


def faulty_leader(kind: str) -> Scenario:
    """The leader of three has that fault until all faults are healed."""
    steps = (Step(0.0, PERMANENT_FAULTS[kind](LEADER, FOLLOWERS)),)
    return Scenario(kind, steps, lasting_s=4.0, shape=Shape(volumes=True), permanent=(kind,))


def named(name: str) -> Scenario:
    """The scenario of that name, or that in which the leader has the permanent fault of that name."""
    return faulty_leader(name) if name in PERMANENT_FAULTS else next(each for each in SCENARIOS if each.name == name)
