"""A node: built, started and stopped. What it does is done by its parts; a request or a reply never passes here."""

import asyncio

import structlog

from quire.log import wall_clock
from quire.replication import next_tick
from quire.replication.names import Names
from quire.replication.net.forming import Forming
from quire.replication.replica import watched_task
from quire.sm import default_initial, load_machine

from ..access.credentials import Credentials
from ..config.serve import ServeConfig
from ..data_dir.genesis import Genesis, read_genesis
from ..errors import StateUnavailable
from .addresses import Addresses
from .applying import Visibility
from .command_times import LOOK_S as TIMES_LOOK_S
from .command_times import CommandTimes
from .components import Components, NodeResources
from .digests import Difference, Digests
from .health import Health
from .leadership import Leadership
from .views.awaiting import log_waits
from .views.fitness import LOOK_S, log_levels
from .views.status import standing_alarms
from .writing import WriteCounts

journal = structlog.get_logger(__name__)


class Node:
    """One node of a cluster. Every method is called on one event loop."""

    def __init__(self, config: ServeConfig, names: Names | None = None) -> None:
        """Load the machine, the certificates and the tokens; nothing is opened yet. `names` resolves whom it dials.

        Raises:
            MachineError: the machine cannot be loaded, or does not take the initial value.
            CredentialsRefused: the certificates or tokens cannot be used.
        """
        machine = load_machine(config.machine)
        self.config = config
        self.names = names or Names()
        """Where the names lead that it dials."""
        self.credentials = Credentials(config.credential_files, config.node, self.names)
        """Its certificates, and the tokens of its callers."""
        self.machine_name = machine.name
        self.health = Health(config.node)
        self.leadership = Leadership(
            config.node,
            config.heartbeat_ms / 1000,
            config.election_timeout_ms / 1000,
            self.health,
            self._log_standing_alarms,
        )
        self.addresses = Addresses(config, lambda: None if self.formed is None else self.formed.replica.core.members)
        self.visibility = Visibility()
        self.digests = Digests(self._digest_compared)
        times = CommandTimes(config.slow_command_ms / 1000, names=config.slow_command_names)
        self.write_counts = WriteCounts(times)
        self.resources: NodeResources | None = None
        self.forming: Forming | None = None
        """The formation of the cluster, while it is in progress."""
        self.formed: Components | None = None
        """What the node consists of; None while the cluster is not formed."""
        self._machine_type = machine
        self.started_at = wall_clock()
        """When this process made it: microseconds since the Unix epoch."""
        self._initial = default_initial(machine) if config.initial is None else config.initial
        machine(self._initial)
        self._look_s = min(LOOK_S, config.election_timeout_ms / 1000)
        self._formation: asyncio.Task[None] | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._standing_alarms: list[str] = []
        self.health.on_halt(lambda _: self.visibility.end())
        self.credentials.on_change(self._log_standing_alarms)
        self.credentials.on_distrust(lambda _: self._dial_again())

    @property
    def components(self) -> Components:
        """What the node consists of. Raises StateUnavailable while the cluster is not formed."""
        if self.formed is None:
            raise StateUnavailable("the cluster is not formed yet")
        return self.formed

    async def start(self) -> None:
        """Open the data_dir, recover, and run; an unformatted node begins to form the cluster instead.

        Raises:
            DataDirRefused, GenesisRefused, LogError: it cannot run here; nothing was changed.
        """
        self.resources = resources = await NodeResources.open(
            self.config, self._machine_type, self.credentials.certificates, self.names
        )
        self._log_standing_alarms()
        try:
            if resources.data_dir.identity is not None:
                await self._run(resources, read_genesis(resources.data_dir.genesis_frame()))
            else:
                self.forming = resources.forming(self._initial)
                self._formation = watched_task(self._form(resources, self.forming), "formation", self.health.failed)
        except BaseException:
            await self.stop()
            raise
        clock = asyncio.get_running_loop().time
        waits = log_waits(self, self.config.election_timeout_ms / 1000, self._look_s, clock)
        self._watches.append(watched_task(waits, "waits", self.health.failed))

    async def _form(self, resources: NodeResources, forming: Forming) -> None:
        """Rule 0: wait for a genesis, store it, run."""
        try:
            await self._run(resources, await resources.format(forming))
        finally:
            self.forming = None

    async def _run(self, resources: NodeResources, genesis: Genesis) -> None:
        applier = await resources.restored(genesis)
        components = Components.build(resources, genesis, applier, self)
        self.formed = components  # Before any of them starts: they send events at once.
        replica = components.replica
        nominated = self.leadership.run(replica, components.pending.lost)
        replica.start(resources.http, nominated=nominated)
        components.compaction.start()
        levels = log_levels(replica, self.config.data_dir, self._look_s)
        self._watches.append(watched_task(levels, "fitness", self.health.failed))
        looking = components.cursor_lags.look_forever()
        self._watches.append(watched_task(looking, "cursors", self.health.failed))
        self._watches.append(watched_task(self._look_at_times(components), "times", self.health.failed))
        self._log_standing_alarms()
        journal.info("running", cluster_id=genesis.cluster_id.hex(), bounds=tuple(components.log.bounds))

    async def _look_at_times(self, components: Components) -> None:
        while True:
            driver = components.replica.driver
            self.write_counts.times.look(
                {
                    "flush": max(driver.flush_durations.take_longest(), driver.flushing_s),
                    "majority": components.pending.awaits_majority_s,
                    "apply": components.applying.executing_s,
                }
            )
            await next_tick(TIMES_LOOK_S)

    async def stop(self) -> None:
        """Stop cleanly. Acknowledged writes are durable already; appended, unanswered ones get an unknown outcome.

        A leader hands over before: `Leadership.hand_over`.
        """
        self.leadership.leave()
        self.visibility.end()
        for task in (self._formation, *self._watches):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.formed is not None:
            await self.leadership.stop()
            await self.formed.replica.stop()
            self.formed.applying.stop()
            await self.formed.compaction.stop()
            self.formed.pending.end("this node is stopping")
        if self.resources is not None:
            await self.resources.close()

    def _dial_again(self) -> None:
        if self.formed is not None:
            self.formed.replica.network.dial_again("a CA is trusted no more, so peers prove themselves anew")

    def _log_standing_alarms(self) -> None:
        known, self._standing_alarms = self._standing_alarms, standing_alarms(self)
        for text in self._standing_alarms:
            if text not in known:
                self.health.alarmed(text)

    def _digest_compared(self, node_id: str, difference: Difference | None) -> None:
        if difference is None:
            journal.info("digests are equal again", peer=node_id)
        else:
            self.health.alarmed(difference.alarm(node_id))
