"""A node that is told to check the protocol's invariants halts at the first one that a mistake breaks."""

import asyncio
from pathlib import Path

import pytest

from quire.replication.core import State
from tests.cluster.running import applied_index, running_cluster
from tests.replication.loopback import DEADLINE_S


def plant(patch: pytest.MonkeyPatch) -> None:
    """Plant a mistake: the node applies whatever is in its file (rule 7)."""
    look = State.look_at_log

    def applies_what_is_not_durable(state: State) -> bool:
        changed = look(state)
        state.reported_apply = max(state.reported_apply, state.end_index)
        return changed

    patch.setattr(State, "look_at_log", applies_what_is_not_durable)


async def test_a_node_halts_at_the_step_that_breaks_a_rule_and_names_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, 1, check_invariants=True) as cluster:
        node = cluster.nodes["n1"].node
        plant(monkeypatch)

        # What the client is answered does not matter here: the node ends.
        await cluster.ask("n1", "POST", "/commands", '{"commands": [["add", 1]]}', "application/json")
        await asyncio.wait_for(node.health.ended.wait(), DEADLINE_S)

        assert node.health.failure is not None
        assert "InvariantBroken('rule 7: only what is committed and durable is applied" in node.health.failure
        ready = await cluster.ask("n1", "GET", "/readyz")
        assert ready.status == 503
        monkeypatch.undo()


async def test_without_the_setting_a_node_checks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(tmp_path, 1, check_invariants=False) as cluster:
        node = cluster.nodes["n1"].node
        plant(monkeypatch)
        applied = applied_index(node)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await cluster.ask("n1", "POST", "/commands", '{"commands": [["add", 1]]}', "application/json")

        assert node.health.failure is None
        assert node.components.replica.core.commit_index > applied
        monkeypatch.undo()
