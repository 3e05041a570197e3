"""`quire restore`: makes a node's data directory from a backup, offline (docs/backup.md).

Where it is left in a start script, it meets an emptied directory beside live members. So those that the backup names
are dialled first, this node's own address included, and any answer refuses.
"""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..backup import StoreOptions, failing, store_of
from ..connection import Json, fail_usage
from ..output import complain, say, to_json
from ..progress import shown_bytes
from .offline import Caller, locked, machine_of, options_for

if TYPE_CHECKING:
    from ...backup.manifest import Manifest
    from ...data_dir.restoration import RestorePlan

restore_app = typer.Typer()

NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")


@restore_app.command(name="restore")
def restore_node(
    source: Annotated[str, typer.Argument(help="A folder, or s3://, gs://, az:// or file://.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where the node is made; empty or absent.")
    ],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="INDEX|TIME", help="Up to an index, or a time in ISO 8601. Default: the end."),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="ID", help="The node's id. Default: the first voter in the backup.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Its address. Default: as in the backup.")
    ] = None,
    fork: Annotated[
        str | None, typer.Option("--fork", metavar="NAME", help="Give the cluster another name, beside the original.")
    ] = None,
    new_history: Annotated[
        bool, typer.Option("--new-history", help="Do not dial the members: restore even if some of them run.")
    ] = False,
    store_option: StoreOptions = None,
    as_json: Json = False,
) -> None:
    """Make a cluster of one node from a backup, in a history of its own. All members must be stopped.

    They are dialled first, unless --fork or --new-history is given. A restore that was interrupted is finished by the
    same command.
    """
    from quire.replication.address import host_and_port

    from ...backup.contents import Contents, Point, choose, read_all
    from ...backup.restore import Restored, Wanted, continued, plan_of
    from ...data_dir.restoration import check_unused, read_restore_plan, restore

    if node is not None and not NODE.fullmatch(node):
        fail_usage(f"--node {node!r}: an id has 1 to 24 of a-z, 0-9 and -, not - first")
    try:
        point = None if at is None else Point.parse(at)
        if address is not None:
            host_and_port(address)
    except ValueError as error:
        fail_usage(str(error))
    with failing():
        store = store_of(source, store_option)
    with failing(), locked(data_dir, create=True) as directory:
        begun, wanted = read_restore_plan(directory), Wanted(point, node, address, fork)
        check_unused(directory)
        manifests = read_all(store, complain)
        if begun is None:
            contents = Contents(store, choose(manifests, point))
            plan = plan_of(contents, wanted)
        else:
            plan, contents = begun, continued(begun, store, manifests, wanted)
        manifest = contents.manifest
        if not new_history and plan.name == manifest.name:
            caller_of(plan).check_nobody_answers(_members((manifest, manifests[-1])), hidden=as_json)
        restored = Restored(contents, plan.end)
        options = options_for(contents.genesis.limits["max_frame_bytes"])
        with shown_bytes("restore", restored.size, hidden=as_json) as progress:
            restore(directory, plan, restored, options, progress, data_dir)
    _tell(plan, manifest, data_dir, as_json=as_json)


def _members(manifests: Sequence["Manifest"]) -> list[tuple[str, str]]:
    """The members that these name, each with every address that it had."""
    known = [(node, address) for manifest in manifests for node, address, _ in manifest.members if address]
    return list(dict.fromkeys(known))


def caller_of(plan: "RestorePlan") -> Caller:
    """This node, of no cluster yet: it has neither a history nor credentials, and needs none, as any answer counts."""
    from quire.log import FEATURES
    from quire.replication.core.members import DISK_ID_BYTES
    from quire.replication.net.hello import NO_CLUSTER, PeerInfo
    from quire.replication.net.trust import Trust

    incarnation = int.from_bytes(os.urandom(8), "little")
    me = PeerInfo(NO_CLUSTER, plan.node_id, os.urandom(DISK_ID_BYTES), incarnation, plan.address, FEATURES)
    advice = (
        "if its cluster runs, start this node with an empty directory and --join; for another cluster beside it, give "
        "--fork NAME, and to restore all the same, --new-history"
    )
    return Caller(me, Trust((), lambda _: True), advice, passes_others=False)


def _tell(plan: "RestorePlan", manifest: "Manifest", data_dir: Path, *, as_json: bool) -> None:
    from ...backup.contents import shown_time

    command = ["quire", "serve", "--node", plan.node_id, "--listen", plan.address, "--data-dir", str(data_dir)]
    machine, to_fill_in = machine_of(manifest.machine[0])
    start = shlex.join(command + machine)
    if as_json:
        facts: dict[str, object] = {"node_id": plan.node_id, "history": plan.history.hex(), "cluster": plan.name}
        facts |= {"manifest": manifest.number, "end": plan.end.index, "time": plan.end.timestamp, "start": start}
        say(to_json(facts))
        return
    last = f"the last is of {shown_time(plan.end.timestamp)}"
    say(f"{plan.node_id} has the records [0, {plan.end.index}) of manifest {manifest.number}; {last}.")
    say(f"It is the only voter, in the new history {plan.history.hex()}.")
    say("Start it, with its other flags as before, but without --members and --join:")
    say(f"    {start}")
    if to_fill_in:
        say(to_fill_in)
    say("Add others, which start with empty directories, as `quire members add` prints it:")
    say(f"    quire members add NODE=HOST:PORT --server {shlex.quote(plan.address)}")
