"""Carries out a scenario's actions on the nodes and links of a cluster in its mesh."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from tests.faults import actions
from tests.faults.mesh import Dialled, Mesh
from tests.processes import wrong_clock
from tests.processes.cluster import Cluster, Node, Unreachable


def clock_of(node: Node) -> Path:
    """The folder that says what a node's wall clock shows."""
    return node.data_dir.with_name(f"clock-{node.node_id}")


class Actor:
    """Acts on a cluster whose nodes have these places."""

    def __init__(self, cluster: Cluster, mesh: Mesh, places: list[Node]) -> None:
        self._cluster = cluster
        self._mesh = mesh
        self._places = places
        self.away: list[Node] = []
        """Nodes that were killed, stopped or paused, and are to be brought back."""
        self.clocks: list[Node] = []
        """Nodes whose clocks were set, and are to be set right."""
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
            case actions.SetClock(place, ahead_s):
                self._set_clock(places[place], ahead_s)
            case actions.LeaveBehind(place):
                self._leave_behind(place)
            case actions.AwaitInstall(place):
                self._await_install(places[place])
            case actions.Kill() | actions.Stop() | actions.Pause():
                self._take_away(action)
            case _:
                assert_never(action)

    def _dialled(self, pairs: Iterable[actions.Pair]) -> list[Dialled]:
        return [Dialled(self._places[a].node_id, self._places[b].node_id) for a, b in sorted(pairs)]

    def _take_away(self, action: actions.Kill | actions.Stop | actions.Pause) -> None:
        node = self._places[action.place]
        match action:
            case actions.Kill():
                node.kill()
            case actions.Stop():
                node.stop()
            case actions.Pause():
                node.pause()
            case _:
                assert_never(action)
        self.away.append(node)

    def _set_clock(self, node: Node, ahead_s: int) -> None:
        wrong_clock.set_ahead(clock_of(node), ahead_s)
        self.clocks.append(node)

    def set_clocks_right(self) -> None:
        """What clocks were set are right again."""
        for node in self.clocks:
            wrong_clock.set_ahead(clock_of(node), 0)

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
