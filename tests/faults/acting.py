"""Carries out a scenario's actions on the nodes and links of a cluster in its mesh."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import assert_never

from tests.faults import actions
from tests.faults.mesh import Dialled, Mesh
from tests.faults.recovery import Recovery
from tests.faults.volume import Volume
from tests.processes.cluster import Cluster, Node, Unreachable
from tests.processes.faulty import Faults


class Actor:
    """Acts on a cluster whose nodes have these places."""

    def __init__(
        self,
        cluster: Cluster,
        mesh: Mesh,
        places: list[Node],
        faults: Mapping[str, Faults],
        volumes: Mapping[str, Volume],
    ) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._places = places
        self._faults = faults
        self._volumes = volumes
        self.recovery = Recovery(cluster)
        """The nodes whose processes or disks were touched, and are to be made whole again."""
        self.left_behind: dict[str, int] = {}
        """Where the log of each node ended that was left behind all others' logs."""

    def act(self, action: actions.Action) -> None:
        """Do it; returns when it is done, which may take as long as anything that is waited for."""
        mesh, places = self._mesh, self._places
        match action:
            case actions.Cut(dialled, channels):
                mesh.cut(self._dialled(dialled), channels)
            case actions.Said(pairs, kind, attributes, channels):
                mesh.poison(self._dialled(pairs), kind, "upstream", attributes, channels)
                mesh.poison(self._dialled((b, a) for a, b in pairs), kind, "downstream", attributes, channels)
            case actions.CutClients(those):
                mesh.cut_clients(places[place].node_id for place in those)
            case actions.ClientsSaid(those, kind, direction, attributes):
                mesh.poison_clients([places[place].node_id for place in those], kind, direction, attributes)
            case actions.Heal():
                mesh.heal()
            case actions.Transfer(to):
                self._transfer(places[to])
            case actions.Silence(pairs, channels):
                mesh.silence(self._dialled(pairs), channels)
            case actions.LeaveBehind(place):
                self._leave_behind(place)
            case actions.AwaitInstall(place):
                self._await_install(places[place])
            case actions.Kill() | actions.Stop() | actions.Pause() | actions.Damage() | actions.Replace():
                self._take_away(action)
            case (
                actions.SetClock()
                | actions.FillDisk()
                | actions.SlowDisk()
                | actions.HangDisk()
                | actions.FailMachine()
            ):
                self._make_ill(action)
            case _:
                assert_never(action)

    def _dialled(self, pairs: Iterable[actions.Pair]) -> list[Dialled]:
        return [Dialled(self._places[a].node_id, self._places[b].node_id) for a, b in sorted(pairs)]

    def _take_away(
        self, action: actions.Kill | actions.Stop | actions.Pause | actions.Damage | actions.Replace
    ) -> None:
        node = self._places[action.place]
        match action:
            case actions.Damage(_, files, by):
                self.recovery.damage(node, files, None if by is None else self._places[by])
                return
            case actions.Replace():
                self.recovery.replace(node)
                return
            case actions.Kill():
                node.kill()
            case actions.Stop():
                node.stop()
            case actions.Pause():
                node.pause()
            case _:
                assert_never(action)
        self.recovery.away.append(node)

    def _make_ill(
        self,
        action: actions.SetClock | actions.FillDisk | actions.SlowDisk | actions.HangDisk | actions.FailMachine,
    ) -> None:
        node = self._places[action.place]
        faults = self._faults[node.node_id]
        match action:
            case actions.SetClock(_, ahead_s):
                faults.set_clock(ahead_s)
            case actions.FillDisk():
                self._volumes[node.node_id].fill()
            case actions.SlowDisk(_, seconds):
                faults.slow_disk(seconds)
            case actions.HangDisk():
                faults.hang_disk()
            case actions.FailMachine():
                faults.begin("fails")
                self.recovery.failed.append(node)
            case _:
                assert_never(action)

    def heal(self) -> None:
        """Links, clocks and disks are whole again, machines fail no more, and who was paused goes on."""
        self._mesh.heal()
        for faults in self._faults.values():
            faults.heal()
        for volume in self._volumes.values():
            volume.empty()
        self.recovery.resume()

    def _transfer(self, target: Node) -> None:
        body = json.dumps({"target": target.node_id}).encode()

        def ask() -> None:
            with suppress(Unreachable):
                target.call("POST", "/admin/transfer", body, {"Content-Type": "application/json"})

        threading.Thread(target=ask, daemon=True).start()  # What else the scenario does, it does meanwhile.

    def _leave_behind(self, place: int) -> None:
        node, places = self._places[place], range(len(self._places))
        others = [other for other in self._places if other is not node]
        self._mesh.cut(self._dialled(actions.between([place], places)))
        end = self._cluster.wait_until("it says where its log ends", lambda: int(node.status()["highest_index"]))
        self._cluster.wait_until(
            f"every other log begins above {end}",
            lambda: all(int(other.status()["lowest_index"]) > end for other in others),
        )
        self.left_behind[node.node_id] = end

    def _await_install(self, node: Node) -> None:
        end = self.left_behind[node.node_id]

        def has_a_chunk() -> bool:
            status = node.status()
            return int(status["install"]["fetched_chunks"]) > 0 or int(status["lowest_index"]) > end

        self._cluster.wait_until(f"{node.node_id} has a chunk of a snapshot", has_a_chunk)
