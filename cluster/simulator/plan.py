"""The plan of a history, drawn from its seed: the settings of its world, and which faults happen when.

Each history has its own mix (swarm testing: Groce et al. 2012). Most histories leave out most kinds of fault, so that
the others reach further.
"""

from dataclasses import dataclass, replace
from random import Random

from quire.log import HISTORY, MEMBERSHIP, IndexCachePolicy, LogOptions
from quire.replication.core import CoreOptions
from quire.sm import MAX_SESSIONS

from .clients import Habits
from .clock import MILLISECOND, SECOND
from .membership.wishes import MemberPlan, member_plan_of
from .network import Weather
from .permanent.faults import PermanentFaults, has_permanent_faults, other_code_of, permanent_faults_of
from .stranger import WORDS

HEARTBEAT_US = 40 * MILLISECOND
ELECTION_US = 300 * MILLISECOND
FRAME_OVERHEAD_BYTES = 128
CALMER = 20
"""In a history with permanent faults, the differences between healthy clocks' rates are divided by this."""

Value = str | int | float | bool


@dataclass(frozen=True)
class Fault:
    """One fault. `whom` names nodes, or their role at that time: `leader`, `follower`, `candidate`, `any`."""

    at: int
    kind: str
    whom: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.at / SECOND:8.3f} s  {self.kind} {' '.join(self.whom)} {' '.join(map(str, self.values))}".rstrip()
        )


@dataclass(frozen=True)
class Settings:
    """The world of a history, before any fault. Times are in microseconds."""

    seed: int
    voters: int
    observers: int
    core: CoreOptions
    log: LogOptions
    weather: Weather
    habits: Habits
    sync_us: tuple[int, int]
    apply_us: int
    clock_ahead_us: int
    rates: tuple[float, ...]
    chaos_us: int
    snapshot_records: int
    """A snapshot is taken at the first boundary past each multiple; 0: there are none."""
    max_sessions: int
    """Above this many, the unnamed session idle longest is evicted."""
    retention_bytes: int
    """The size at which each node's log is kept, approximately; 0: nothing expires."""
    retention_follower_bytes: int
    spares: int = 0
    """Nodes with an empty disk, which belong to no cluster at first."""

    @property
    def node_ids(self) -> list[str]:
        """The first members, voters first."""
        return [f"n{number + 1}" for number in range(self.voters + self.observers)]

    @property
    def spare_ids(self) -> list[str]:
        """The spare nodes."""
        first = self.voters + self.observers + 1
        return [f"n{number}" for number in range(first, first + self.spares)]


@dataclass(frozen=True)
class Plan:
    """A history before it runs."""

    settings: Settings
    faults: tuple[Fault, ...]
    permanent: PermanentFaults | None = None
    """The permanent faults that follow these."""
    changes_members: bool = False
    """Whether an operator changes the members, and nodes whose disk is empty join."""
    recovers: bool = False
    """Whether a majority of the disks is lost in the end, and a survivor is recovered."""
    restores: bool = False
    """Whether a backup is restored beside the members."""

    def without(self, faults: frozenset[int]) -> "Plan":
        """The same plan without the faults at these positions."""
        return replace(self, faults=tuple(fault for at, fault in enumerate(self.faults) if at not in faults))

    def without_consumers(self) -> "Plan":
        """The same plan without consumers, as its seed's was when there were none."""
        return replace(self, settings=replace(self.settings, habits=replace(self.settings.habits, consumers=0)))


def settings_of(seed: int) -> Settings:
    """The settings of a seed."""
    random = Random(f"{seed}/settings")
    voters, observers = random.choice(((3, 0), (3, 0), (3, 0), (3, 1), (5, 0)))
    segment = random.choice((2048, 4096, 4096, 16384))
    frame = random.choice((1024, 2048))
    core = CoreOptions(
        heartbeat_us=HEARTBEAT_US,
        election_timeout_us=ELECTION_US,
        window_bytes=random.choice((512, 4096, 1 << 20)),
        shipment_bytes=random.choice((1, 600, 4096, 1 << 20)),
        frame_requests=random.choice((1, 3, 1000)),
        frame_bytes=frame - FRAME_OVERHEAD_BYTES,
        waiting_requests=random.choice((3, 1000)),
        uncommitted_bytes=random.choice((400, 1 << 20)),
        reads_waiting=random.choice((2, 1000)),
    )
    log = LogOptions(
        segment_bytes=segment,
        segment_overflow_bytes=max(segment // 2, frame),
        index_interval_bytes=random.choice((0, 512, 4096)),
        max_frame_bytes=frame,
        write_buffer_bytes=random.choice((0, 300, 1 << 18)),
        open_segments=random.choice((1, 64)),
        index_cache_policy=IndexCachePolicy.NEWEST,  # as a node's log
    )
    slowest = random.choice((1_000, 3_000, 10_000, 40_000))
    weather = Weather(
        lowest_us=random.choice((100, 1_000)),
        highest_us=slowest,
        late_chance=random.choice((0.0, 0.02, 0.1)),
        late_us=random.choice((30_000, 100_000, 400_000)),
        double_chance=random.choice((0.0, 0.01, 0.1)),
        break_chance=random.choice((0.0, 0.5, 1.0)),
        piece_bytes=random.choice((100, 1000, 1 << 20)),
        max_frame_bytes=frame,
    )
    habits = _with_consumers(_habits(random), Random(f"{seed}/consumers"))
    skew = random.choice((0.02, 0.4))
    sync_us = random.choice(((50, 500), (100, 5_000), (1_000, 40_000), (10_000, 150_000)))
    # Clients that retry before a disk can have answered would make work faster than the disk does it.
    storms = sync_us[1] >= habits.patience_us
    habits = replace(habits, patience_after_us=habits.patience_us * (16 if storms else 1))
    state = Random(f"{seed}/state")
    snapshot_records, retention_bytes = state.choice((0, 0, 5, 10, 40)), state.choice((0, 1, 1, 1024))
    if snapshot_records and retention_bytes:
        log = replace(
            log, segment_bytes=state.choice((512, 1024, segment))
        )  # Only whole segments expire: small ones expire soon.
    return Settings(
        seed=seed,
        voters=voters,
        observers=observers,
        core=core,
        log=log,
        weather=weather,
        habits=habits,
        sync_us=sync_us,
        apply_us=random.choice((0, 0, 5_000, 100_000)),
        clock_ahead_us=random.choice((0, SECOND, 8 * SECOND)),
        rates=tuple(random.uniform(1 - skew, 1 + skew) for _ in range(voters + observers)),
        chaos_us=6 * SECOND,
        snapshot_records=snapshot_records,
        max_sessions=state.choice((2, 3, MAX_SESSIONS)),
        retention_bytes=retention_bytes,
        retention_follower_bytes=state.choice((0, 0, segment)),
    )


def _habits(random: Random) -> Habits:
    return Habits(
        clients=random.choice((2, 3, 5)),
        think_us=random.choice((15, 40, 100, 200)) * MILLISECOND,
        sessionless_chance=random.choice((0.2, 0.2, 0.8)),
        blob_chance=random.choice((0.1, 0.5)),
        expecting_chance=random.choice((0.1, 0.5)),
        lost_chance=random.choice((0.0, 0.02)),
        restart_chance=random.choice((0.0, 0.02)),
        named=random.random() < 0.7,
        wander_chance=random.choice((0.0, 0.05, 0.3)),
        patience_us=random.choice((150, 600)) * MILLISECOND,
    )


def _with_consumers(habits: Habits, random: Random) -> Habits:
    return replace(
        habits, consumers=random.choice((1, 2, 2)), commit_us=random.choice((1000, 1500, 2500)) * MILLISECOND
    )


# What makes a fuse start to burn: an operation on the disk; "": at once.
TRIGGERS = ("", "", "", "truncate ", "truncate ", "rename", "write promise", "write mark", "sync", "allocate")
ROLES = ("leader", "leader", "leader", "follower", "follower", "any", "candidate")
OF_LEADERS = ("transfer", "depose")
KINDS = {
    "cut": 3.0,
    "crash": 2.0,
    "fuse": 2.0,
    "pause": 0.7,
    "clock": 0.3,
    "slow_disk": 0.7,
    "hang_disk": 0.7,
    "failing_disk": 0.5,
    "full_disk": 0.3,
    "slow_link": 0.7,
    "reset_links": 0.7,
    "break_streams": 0.7,
    "stop": 0.4,
    "power_all": 0.3,
    "transfer": 1.0,
    "depose": 0.7,
}


STRANGER_SAYS = (5, 40)


def plan_with_stranger(seed: int) -> Plan:
    """The plan of a seed with a stranger during the other faults, and without its permanent faults."""
    plan, random = plan_of(seed), Random(f"{seed}/what the stranger says")
    words = [
        Fault(
            random.randint(SECOND // 2, plan.settings.chaos_us),
            "stranger",
            (random.choice((*ROLES, *plan.settings.node_ids)),),
            (random.choice(WORDS),),
        )
        for _ in range(random.randint(*STRANGER_SAYS))
    ]
    faults = tuple(sorted((*plan.faults, *words), key=lambda fault: fault.at))
    return replace(plan, faults=faults, permanent=None)


def plan_of(seed: int, *, other_code: bool = False) -> Plan:
    """The plan of a seed. A third of all seeds have permanent faults; with `other_code` all have that of other code."""
    settings = settings_of(seed)
    expires = bool(settings.retention_bytes and settings.snapshot_records)
    if other_code:
        permanent: PermanentFaults | None = other_code_of(seed, settings.voters)
    else:
        permanent = permanent_faults_of(seed, settings.voters, expires=expires)
    if permanent is not None:
        settings = replace(settings, rates=tuple(1 + (rate - 1) / CALMER for rate in settings.rates))
    random = Random(f"{seed}/faults")
    kinds = {kind: weight for kind, weight in KINDS.items() if kind in ("cut", "crash") or random.random() < 0.5}
    pause_us = random.choice((150, 300, 600)) * MILLISECOND
    faults = _nominations(settings, random)
    at = SECOND // 2
    faults += [_fault(settings, random, at + SECOND, "cut"), _fault(settings, random, at + 2 * SECOND, "crash")]
    while at < settings.chaos_us:
        kind = random.choices(list(kinds), list(kinds.values()))[0]
        faults.append(_fault(settings, random, at, kind))
        at += int(random.expovariate(1.0) * pause_us)
    if random.random() < 0.15:
        faults.append(Fault(random.randint(SECOND, settings.chaos_us), "wipe", (random.choice(settings.node_ids),)))
    if settings.retention_bytes and settings.snapshot_records:
        faults += _absences(settings)
    faults += _promotions(settings, faults)
    members = None if permanent is not None else member_plan_of(seed, settings.node_ids, settings.chaos_us)
    if members is not None:
        settings = _with_members(settings, members)
        faults += [Fault(*wished) for wished in members.wishes]
    return Plan(
        settings,
        tuple(sorted(faults, key=lambda fault: fault.at)),
        permanent,
        members is not None,
        members is not None and members.recovers,
        members is not None and members.restores,
    )


def _with_members(settings: Settings, members: MemberPlan) -> Settings:
    core = replace(settings.core, features=frozenset({MEMBERSHIP, HISTORY}), auto_replace_us=members.auto_replace_us)
    return replace(settings, core=core, spares=members.spares, rates=settings.rates + members.rates)


def changes_members(seed: int) -> bool:
    """Whether an operator changes the members in the history of a seed."""
    return plan_of(seed).changes_members


def is_permanent(seed: int, kind: str = "") -> bool:
    """Whether the history of a seed has permanent faults, and among them one of this kind."""
    if not has_permanent_faults(seed):
        return False
    permanent = plan_of(seed).permanent
    return permanent is not None and permanent.has(kind)


def calm(settings: Settings) -> Settings:
    """The same world with healthy disks, machines and networks, as a majority may expect them."""
    weather = replace(
        settings.weather,
        highest_us=min(settings.weather.highest_us, 10 * MILLISECOND),
        late_chance=min(settings.weather.late_chance, 0.02),
        late_us=min(settings.weather.late_us, 30 * MILLISECOND),
    )
    lowest_us, highest_us = (min(bound_us, 10 * MILLISECOND) for bound_us in settings.sync_us)
    apply_us = min(settings.apply_us, 5 * MILLISECOND)
    return replace(settings, weather=weather, sync_us=(lowest_us, highest_us), apply_us=apply_us)


def _absences(settings: Settings) -> list[Fault]:
    """If logs expire: some nodes are away until the leader's log begins above theirs, and some lose their disk."""
    random = Random(f"{settings.seed}/absences")
    faults: list[Fault] = []
    for _ in range(random.choice((1, 2, 2))):
        at, lasts = random.randint(SECOND, 3 * SECOND), random.choice((1500, 2500, 3500)) * MILLISECOND
        whom = (random.choice((*settings.node_ids, "follower")),)
        faults.append(Fault(at, "crash", whom, (random.choice(("kill", "nothing", "some")), lasts)))
    if random.random() < 0.3:
        faults.append(Fault(random.randint(2 * SECOND, 5 * SECOND), "wipe", (random.choice(settings.node_ids),)))
    return faults


def _promotions(settings: Settings, faults: list[Fault]) -> list[Fault]:
    """Most nodes that lose their disk become voters again; some observers become voters."""
    random = Random(f"{settings.seed}/promotions")
    losses = [(fault.at, fault.whom) for fault in faults if fault.kind == "wipe" and random.random() < 0.8]
    losses += [(SECOND, (node,)) for node in settings.node_ids[settings.voters :] if random.random() < 0.5]
    return [Fault(at + random.randint(0, 3 * SECOND), "promote", whom) for at, whom in losses]


def _nominations(settings: Settings, random: Random) -> list[Fault]:
    """The control plane: mostly one candidate, which some learn late; sometimes two, none, or one that is down."""
    faults: list[Fault] = []
    at, voters = 0, settings.node_ids[: settings.voters]
    candidates = [random.choice(voters)]
    pause_us = random.choice((400, 1000, 2500)) * MILLISECOND
    while at < settings.chaos_us:
        late = random.choice((0, 0, 20, 300))
        faults += [
            Fault(at + random.randint(0, late) * MILLISECOND, "nominate", (node,), (node in candidates,))
            for node in voters
        ]
        at += int(random.expovariate(1.0) * pause_us) + 100 * MILLISECOND
        candidates = random.sample(voters, random.choice((0, 1, 1, 1, 1, 2)))
    return faults


def _fault(settings: Settings, random: Random, at: int, kind: str) -> Fault:
    whom: tuple[str, ...] = ("leader" if kind in OF_LEADERS else random.choice((*ROLES, *settings.node_ids)),)
    values: tuple[Value, ...] = ()
    lasts = random.choice((50, 300, 700, 1500)) * MILLISECOND
    match kind:
        case "cut":
            shape = random.choice(("alone", "alone", "alone", "one_way_in", "one_way_out", "halves", "bridge", "pair"))
            values = (shape, lasts)
        case "crash":
            values = (random.choice(("kill", "nothing", "some", "some", "everything")), lasts)
        case "fuse":
            how, burns = random.choice(("kill", "nothing", "some", "some")), random.choice((0, 1, 3, 8, 20, 60))
            values = (how, lasts, burns, random.choice(TRIGGERS))
        case "pause" | "hang_disk" | "full_disk" | "depose" | "stop":
            values = (lasts,)
        case "failing_disk":
            values = (lasts, random.choice(("any", "store", "mark", "promise")))
        case "clock":
            values = (random.choice((-20, -3, 3, 20)) * SECOND,)
        case "slow_disk":
            values = (lasts, random.choice((20, 100, 300)) * MILLISECOND)
        case "slow_link":
            values = (lasts, random.choice((20, 100, 400)) * MILLISECOND)
        case "transfer":
            values = (random.choice(("", *settings.node_ids)),)
        case "power_all":
            whom, values = (), (random.choice(("nothing", "some", "everything")), lasts)
        case _:
            pass
    return Fault(at, kind, whom, values)
