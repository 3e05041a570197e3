"""A machine whose code changes under the same version: an alarm on each node concerned until an operator accepts it."""

import asyncio
import sys
from pathlib import Path

import pytest

from quire.cluster.data_dir.code import CODE_FILE
from quire.cluster.errors import DiskFullError, StateUnavailable
from quire.cluster.node.code import MachineCode
from quire.cluster.node.digests import Parting
from quire.cluster.node.views.fitness import SAME_CODE
from quire.cluster.node.views.status import node_status
from quire.replication.core.fitness.codes import OTHER_CODE
from quire.sm.machines.fingerprint import short
from tests.cluster.ledger import RULES, SPEC, Deploy
from tests.cluster.running import RunningCluster, running_cluster, started
from tests.data_dir.voters import formatted, opened

DEADLINE_S = 60
COMMENTED = RULES + "# Amounts are in cents.\n"
OTHER = RULES.replace("+ amount", "+ amount + 100")

EXTENDED = RULES.replace("+ amount", "+ amount * (2 if amount >= 1000 else 1)")
"""As before for the amounts that were posted so far."""


def alarms(cluster: RunningCluster, node_id: str) -> list[str]:
    """A node's alarms. They may tell of a clock or a digest, too."""
    told: list[str] = node_status(cluster.nodes[node_id].node)["alarms"]
    return [alarm for alarm in told if " code " in alarm]


def changed(old: str, new: str) -> str:
    """How the alarm of a node that runs other code begins."""
    return f"this node ran code {old} of machine ledger version 1, and runs {new} now: "


def differing(*runs: str) -> str:
    """How the alarm of members with different code begins."""
    return f"members run different code of machine ledger version 1 ({'; '.join(runs)}): "


async def told(cluster: RunningCluster, **expected: list[str]) -> None:
    """Wait until just these alarms are there, by node; each is named by how it begins."""

    def begins(node_id: str) -> bool:
        found, wanted = alarms(cluster, node_id), sorted(expected[node_id])
        return len(found) == len(wanted) and all(map(str.startswith, sorted(found), wanted))

    try:
        async with asyncio.timeout(DEADLINE_S):
            while not all(map(begins, expected)):
                await cluster.ask(next(iter(cluster.nodes)), "GET", "/healthz")
    except TimeoutError:
        pytest.fail(f"wanted {expected}, found { {node_id: alarms(cluster, node_id) for node_id in expected} }")


async def command_line(cluster: RunningCluster, *arguments: str) -> tuple[int | None, str, str]:
    """Exit code and output of `quire`."""
    program = (sys.executable, "-m", "quire.cluster.cli.main", *arguments, "--server", cluster.address("n1"))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*program, stdout=pipe, stderr=pipe)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def test_a_rolling_change_of_a_comment_is_told_on_every_node_until_the_operator_accepts_it(
    tmp_path: Path, deploy: Deploy
) -> None:
    old = deploy(RULES)
    async with running_cluster(tmp_path, machine=SPEC) as cluster:
        await cluster.commands("n1", 97)
        await told(cluster, n1=[], n2=[], n3=[])

        new = deploy(COMMENTED)
        await cluster.restart("n3")
        await cluster.ready()  # Nobody is kept from serving.
        mixed = differing(f"n1, n2: {old}", f"n3: {new}")
        await told(cluster, n1=[mixed], n2=[mixed], n3=[mixed, changed(old, new)])
        assert all("a changed comment is enough" in alarm for alarm in alarms(cluster, "n3"))

        await cluster.restart("n2")
        await cluster.ready()
        mixed = differing(f"n1: {old}", f"n2, n3: {new}")
        await told(cluster, n1=[mixed], n2=[mixed, changed(old, new)], n3=[mixed, changed(old, new)])

        for _ in range(2):  # The second start with this code is told of as well.
            await cluster.restart("n1")
            await cluster.ready()
        await told(cluster, **{node_id: [changed(old, new)] for node_id in cluster.nodes})

        code, out, errors = await command_line(cluster, "admin", "accept-code")
        assert (code, errors) == (0, "")
        assert out.count(new) == 6
        await told(cluster, n1=[], n2=[], n3=[])
        await cluster.restart("n2")
        await cluster.ready()
        await told(cluster, n1=[], n2=[], n3=[])


async def test_code_that_changes_acknowledged_results_on_all_nodes_alike_is_told_on_all(
    tmp_path: Path, deploy: Deploy
) -> None:
    old = deploy(RULES)
    async with running_cluster(tmp_path, machine=SPEC) as cluster:
        assert (await cluster.commands("n1", 97))["results"] == [97]
        new = deploy(OTHER)
        for node_id in ("n1", "n2", "n3"):
            await cluster.stop(node_id)
    async with running_cluster(tmp_path, machine=SPEC) as cluster:
        assert (await cluster.ask("n1", "GET", "/state")).document["state"] == 197
        await told(cluster, **{node_id: [changed(old, new)] for node_id in cluster.nodes})


async def test_the_alarm_lasts_when_the_old_code_comes_back(tmp_path: Path, deploy: Deploy) -> None:
    """What the other code answered is computed again by the old one."""
    old = deploy(RULES)
    async with running_cluster(tmp_path, 1, machine=SPEC) as cluster:
        new = deploy(COMMENTED)
        await cluster.restart("n1")
        await told(cluster, n1=[changed(old, new)])
        newest = deploy(COMMENTED + "#")
        await cluster.restart("n1")
        await told(cluster, n1=[changed(old, newest).replace(" now: ", f" now, and {new} in between: ")])

        assert deploy(RULES) == old
        await cluster.restart("n1")
        between = f" now, and {new} or {newest} in between: "
        await told(cluster, n1=[changed(old, old).replace(" now: ", between)])

        assert (await cluster.ask("n1", "POST", "/admin/accept-code")).status == 200
        await told(cluster, n1=[])


async def test_a_directory_from_before_the_file_starts_without_an_alarm(tmp_path: Path, deploy: Deploy) -> None:
    deploy(RULES)
    async with running_cluster(tmp_path, 1, machine=SPEC) as cluster:
        config = cluster.nodes["n1"].config
        await cluster.stop("n1")
        (config.data_dir / CODE_FILE).unlink()
        new = deploy(COMMENTED)

        cluster.nodes["n1"] = await started(config)

        await told(cluster, n1=[])
        machine = node_status(cluster.nodes["n1"].node)["machine"]
        assert [short(bytes.fromhex(code)) for code in machine["accepted_code"]] == [new]


async def test_accept_code_over_http_answers_what_it_accepted_for_one_node(tmp_path: Path, deploy: Deploy) -> None:
    old = deploy(RULES)
    async with running_cluster(tmp_path, machine=SPEC) as cluster:
        new = deploy(COMMENTED)
        await cluster.restart("n3")
        await cluster.ready()
        mixed = differing(f"n1, n2: {old}", f"n3: {new}")
        await told(cluster, n1=[mixed], n2=[mixed], n3=[mixed, changed(old, new)])

        reply = await cluster.ask("n3", "POST", "/admin/accept-code")

        assert reply.status == 200
        answer = reply.document
        assert (answer["node_id"], short(bytes.fromhex(answer["code"]))) == ("n3", new)
        assert sorted(short(bytes.fromhex(code)) for code in answer["accepted_code"]) == sorted([old, new])
        await told(cluster, n1=[mixed], n2=[mixed], n3=[])
        await cluster.restart("n3")
        await told(cluster, n3=[])


async def test_a_leader_whose_code_is_left_in_a_minority_refuses_commands_until_a_node_of_the_majority_leads(
    tmp_path: Path, deploy: Deploy
) -> None:
    old = deploy(RULES)
    async with running_cluster(tmp_path, machine=SPEC) as cluster:
        assert (await cluster.commands("n1", 1))["results"] == [1]
        new = deploy(EXTENDED)
        await cluster.restart("n3")
        await cluster.ready()  # n3 is unfit, serves its state, and keeps nobody from serving.
        assert (await cluster.commands("n1", 1))["results"] == [2]

        async def refused_by_n1() -> str:
            while True:
                reply = await cluster.ask("n1", "POST", "/commands", b'{"commands":[1]}', "application/json")
                if "until another node leads" in reply.document.get("detail", ""):
                    assert reply.status == 503
                    return reply.problem

        asking = asyncio.create_task(refused_by_n1())
        await cluster.restart("n2")
        async with asyncio.timeout(DEADLINE_S):
            assert await asking == "state-unavailable"

        await cluster.ready()
        assert node_status(cluster.nodes["n1"].node)["leader"] in ("n2", "n3")
        before, after = (await cluster.commands("n1", 1, 1_000))["results"]
        assert after == before + 2_000  # By the code that a majority runs.
        fitness = node_status(cluster.nodes["n1"].node)["fitness"]
        assert (fitness["name"], fitness["reason"]) == ("machine_failed", OTHER_CODE)
        assert fitness["do"] == SAME_CODE
        [alarm] = alarms(cluster, "n1")
        assert alarm.startswith(differing(f"n1: {old}", f"n2, n3: {new}"))
        assert "n1: not a majority's code, so unfit to lead, and refuses commands while leading" in alarm
        assert "(1) no new command before all nodes have the code; (2)" in alarm
        refusal = await cluster.ask("n1", "POST", "/admin/snapshot")
        assert (refusal.status, "neither a majority runs" in refusal.document["detail"]) == (503, True)

        assert (await cluster.ask("n1", "POST", "/admin/accept-code")).status == 200

        assert (await cluster.ask("n1", "POST", "/admin/snapshot")).status == 200
        await told(cluster, n1=[])


async def test_a_leader_of_other_code_refuses_nothing_by_its_own_check(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1) as cluster:
        components = cluster.nodes["n1"].node.components
        assert components.writing.checked(["no command"])

        components.replica.core.state.fitness.other_code = OTHER_CODE

        with pytest.raises(StateUnavailable, match="until another node leads"):
            components.writing.checked(["no command"])


# Without nodes


VOTERS = ("n1", "n2", "n3")

BANK = ("bank", 1)
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


async def machine_code(running: bytes, *before: bytes) -> MachineCode:
    """Of a node that runs this code, and ran other code before."""
    data_dir = opened(formatted())
    for code in before:
        data_dir.note_code(BANK, code)
    found = MachineCode(data_dir, BANK, running)
    await found.start()
    return found


async def test_unknown_code_is_no_alarm_of_a_node_nor_among_members() -> None:
    assert (await machine_code(b"", A)).alarms({"n1": b"", "n2": A}, VOTERS, None) == []
    assert (await machine_code(A)).alarms({"n1": A, "n2": b"", "n3": b""}, VOTERS, None) == []
    assert (await machine_code(A, b"")).alarms({"n1": A}, VOTERS, None) == []


async def test_code_that_was_accepted_on_another_member_is_no_change_when_it_comes_here() -> None:
    """A rolling change that is accepted half way ends without another word."""
    code = await machine_code(A)
    await code.accept({"n1": A, "n2": B})

    assert code.accepted == (A, B)
    assert code.alarms({"n1": A, "n2": B}, VOTERS, None) == []
    [alarm] = code.alarms({"n1": A, "n2": B, "n3": C}, VOTERS, None)
    assert f"(n1: {short(A)}; n2: {short(B)}; n3: {short(C)})" in alarm


async def test_the_alarm_says_who_may_not_lead_where_states_part_and_which_steps_lose_nothing() -> None:
    code = await machine_code(B)
    parting = Parting(7, 12, b"d" * 16, "n1")

    [alarm] = code.alarms({"n1": B, "n2": A, "n3": A}, VOTERS, parting)

    assert "n1: not a majority's code, so unfit to lead" in alarm
    digest = (b"d" * 16).hex()
    where = f"a majority has digest {digest} at index 12, and n1 parts from it above index 7 and by 12"
    order = (
        "(1) no new command before all nodes have the code; (2) see whose epoch has the commands from 7 on (`quire "
        "read`; `leaders` in /status); (3) if a majority's node answered them, give n1 its code; if n1 did, keep its "
        "data_dir, the only copy, and follow deploy/runbook.md; (4) once all results are the same, run `quire admin "
        "accept-code`"
    )
    assert f"{where}: {order}" in alarm


async def test_without_a_majority_for_any_code_the_alarm_says_that_answers_may_not_last() -> None:
    code = await machine_code(B)
    for others in ({"n1": B, "n2": A}, {"n1": B, "n2": A, "n3": b""}, {"n1": B, "n2": A, "n3": C}):
        [alarm] = code.alarms(others, VOTERS, None)
        assert (
            "no code has a majority of the voters, so any of them may lead, and what it answers may not last" in alarm
        )


async def test_an_acceptance_replaces_what_was_accepted_before() -> None:
    code = await machine_code(B, A)
    assert code.alarms({"n1": B}, VOTERS, None)
    await code.accept({"n1": B})

    assert code.accepted == (B,)
    assert code.alarms({"n1": B}, VOTERS, None) == []
    assert code.alarms({"n1": B, "n2": A}, VOTERS, None)


async def test_where_no_code_is_known_an_acceptance_changes_nothing() -> None:
    code = await machine_code(b"", A)
    await code.accept({"n1": b""})

    assert code.accepted == (A,)


async def test_another_version_of_the_machine_ends_the_alarm() -> None:
    data_dir = opened(formatted())
    data_dir.note_code(BANK, A)
    code = MachineCode(data_dir, ("bank", 2), B)
    await code.start()

    assert code.alarms({"n1": B}, VOTERS, None) == []
    assert code.accepted == (B,)


async def test_an_acceptance_that_cannot_be_written_is_refused_and_changes_nothing() -> None:
    disk = formatted()
    data_dir = opened(disk)
    data_dir.note_code(BANK, A)
    code = MachineCode(data_dir, BANK, B)
    await code.start()
    disk.full = True

    with pytest.raises(DiskFullError):
        await code.accept({"n1": B})

    assert code.accepted == (A,)
    assert code.alarms({"n1": B}, VOTERS, None)
