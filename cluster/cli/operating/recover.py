"""`quire recover`: makes one survivor of a lost majority a cluster again, offline (`deploy/runbook.md`).

A majority that only seems lost must not go on in one history while this node begins another one. So the other members
are dialled first, as this node dials them, and whatever answers as one of them, or cannot be told apart, refuses.
"""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..connection import Json, fail_usage
from ..output import say, to_json
from ..progress import shown_bytes
from .offline import Caller, MayAnswer, locked, machine_of, options_for

if TYPE_CHECKING:
    from quire.log import Directory, LogOptions

    from ...access.tls import TlsFiles
    from ...data_dir.recovery import RecoveryPlan
    from ...data_dir.survivor import Survivor

recover_app = typer.Typer()

PemFile = typer.Option(metavar="FILE", help="This node's, as for `quire serve`; if the cluster uses certificates.")


@recover_app.command(name="recover")
def recover_node(
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The survivor's data directory.")],
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="The cluster's name.")] = None,
    only_inspect: Annotated[bool, typer.Option("--inspect", help="Print what it holds; change nothing.")] = False,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Its address from now on; default: as before.")
    ] = None,
    tls_cert: Annotated[Path | None, PemFile] = None,
    tls_key: Annotated[Path | None, PemFile] = None,
    tls_ca: Annotated[Path | None, PemFile] = None,
    peer_secret_file: Annotated[
        Path | None, typer.Option("--peer-secret-file", metavar="FILE", help="If the cluster uses a peer secret.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the only survivor of a lost majority a cluster of one voter. Its node and all others must be stopped.

    Of several survivors, run --inspect on each, and recover the greatest by (last epoch, end). The others join it
    afterwards with empty directories.
    """
    from quire.replication.address import host_and_port

    from ...access.tls import TlsFiles
    from ...data_dir.identity import read_identity
    from ...data_dir.recovery import make_plan, read_plan, recover, refuse_unfinished

    if only_inspect == (cluster is not None):
        fail_usage("give either --inspect, or --cluster NAME to recover")
    if address is not None:
        try:
            host_and_port(address)
        except ValueError as error:
            fail_usage(str(error))
    tls = (tls_cert, tls_key, tls_ca)
    if any(tls) and not all(tls):
        fail_usage("--tls-cert, --tls-key and --tls-ca go together")
    with locked(data_dir) as directory:
        if cluster is None:
            refuse_unfinished(directory)
            _show(_inspected(directory, as_json), as_json=as_json)
            return
        plan = read_plan(directory) or make_plan(directory.path, _inspected(directory, as_json), cluster, address)
        files = TlsFiles(tls_cert, tls_key, tls_ca) if tls_cert and tls_key and tls_ca else None
        caller = _caller(plan, cluster, files, peer_secret_file)
        caller.check_nobody_answers(plan.others, hidden=as_json)
        recover(directory, plan, _options(directory))
        identity = read_identity(directory)
    _tell(plan, data_dir, "" if identity is None else identity.machine[0], as_json=as_json)


def _inspected(directory: "Directory", hidden: bool) -> "Survivor":
    from quire.log import log_bytes

    from ...data_dir.survivor import inspect

    with shown_bytes("recover", log_bytes(directory), hidden=hidden) as progress:
        return inspect(directory, progress)


def _options(directory: "Directory") -> "LogOptions":
    from ...data_dir.genesis import FRAME_LIMITS, read_genesis, read_genesis_file

    frame = read_genesis_file(directory)
    return options_for(FRAME_LIMITS[-1] if frame is None else read_genesis(frame).limits["max_frame_bytes"])


def _caller(plan: "RecoveryPlan", cluster: str, tls: "TlsFiles | None", secret_file: Path | None) -> Caller:
    """This node, as its former self. Raises MayAnswer, and ClusterError for a file."""
    from quire.log import FEATURES
    from quire.replication.net.hello import PeerInfo
    from quire.replication.net.trust import Trust

    from ...access.credentials import CredentialFiles, Credentials
    from ...config.secret_file import read_secrets

    credentials = Credentials(CredentialFiles(tls=tls), plan.node_id)
    if credentials.tls is not None and credentials.tls.cluster != cluster:
        named = f"the certificate is of the cluster {credentials.tls.cluster}, not {cluster}"
        raise MayAnswer(f"{named}; give --cluster {credentials.tls.cluster}")
    secrets = () if secret_file is None else read_secrets(secret_file).secrets
    trust = Trust(secrets, lambda _: True, credentials.certificates)
    incarnation = int.from_bytes(os.urandom(8), "little")
    me = PeerInfo(plan.former_history, plan.node_id, plan.former_disk_id, incarnation, plan.address, FEATURES)
    advice = "stop {node_id}, or, if a majority of the members still runs, start this node again as it was"
    return Caller(me, trust, advice, passes_others=True)


# What is printed


def _show(found: "Survivor", *, as_json: bool) -> None:
    facts: dict[str, object] = {
        "node_id": found.identity.node_id,
        "history": found.identity.history.hex(),
        "last_epoch": found.tail.epoch,
        "end": found.tail.index,
        "commit_index": found.commit_index,
        "role": found.role,
        "removed_at": found.removed_at,
        "members": {member.node_id: member.address for member in found.members.members},
    }
    if as_json:
        say(to_json(facts))
        return
    me = found.identity.node_id
    state = f"was removed at index {found.removed_at}" if found.removed_at is not None else found.role or "no member"
    say(f"node           {me} ({state})")
    say(f"history        {found.identity.history.hex()}")
    say(f"last epoch     {found.tail.epoch}")
    say(f"end            {found.tail.index}")
    say(f"commit index   {found.commit_index}")
    say("members        " + ", ".join(f"{m.node_id}={m.address} ({m.role})" for m in found.members.members))
    say("Recover the survivor with the greatest last epoch and, of equal ones, the greatest end.")


def _tell(plan: "RecoveryPlan", data_dir: Path, recorded_machine: str, *, as_json: bool) -> None:
    machine, to_fill_in = machine_of(recorded_machine)
    listening = ["--node", plan.node_id, "--listen", plan.address]
    start = shlex.join(["quire", "serve", *listening, "--data-dir", str(data_dir), *machine])
    joining = ["--data-dir", "EMPTY_DIR", "--join", plan.address, *machine]
    joins = {
        node: shlex.join(["quire", "serve", "--node", node, "--listen", address, *joining])
        for node, address in plan.others
    }
    pairs = [f"{node}={address}" for node, address in plan.others]
    add = shlex.join(["quire", "members", "add", *pairs, "--server", plan.address]) if pairs else None
    if as_json:
        facts: dict[str, object] = {"node_id": plan.node_id, "history": plan.history.hex(), "cluster": plan.name}
        facts |= {"commit_index": plan.commit_index, "end": plan.end, "start": start, "join": joins, "add": add}
        say(to_json(facts))
        return
    say(f"{plan.node_id} is the only voter of the cluster {plan.name}, in the new history {plan.history.hex()}.")
    say(f"All its records [0, {plan.end}) were kept.")
    if plan.commit_index < plan.end:
        say(f"Those from index {plan.commit_index} on might not have been acknowledged to the clients that wrote them.")
    say("Start it, with its other flags as before, but without --members and --join:")
    say(f"    {start}")
    if to_fill_in:
        say(to_fill_in)
    if add is not None:
        say("Start the others with empty directories, each on its machine; their old directories are refused:")
        for line in joins.values():
            say(f"    {line}")
        say("Then make them voters again:")
        say(f"    {add}")
