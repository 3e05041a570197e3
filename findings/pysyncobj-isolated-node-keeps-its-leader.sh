#!/usr/bin/env bash
# PySyncObj 0.3.17: a node that has lost all others goes on naming the leader that it had, for ever.
#
# One would guess: a follower that hears nothing for `raftMaxTimeout` becomes a candidate, as in the Raft paper, and has
# no leader then: `getStatus()["leader"]` and `_getLeader()` give None, which a client takes as "ask elsewhere".
#
# What happens: the election timer does nothing while no other node is connected. A follower that has lost both others
# stays a follower in its term, and names the leader that is gone, many timeouts later as well. So the status of the
# most isolated node looks the healthiest. Only `has_quorum` tells.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pysyncobj==0.3.17

cat >"$folder/seen.py" <<'PYTHON'
import socket
import sys
import time

from pysyncobj import SyncObj, SyncObjConf

TIMEOUT_S = 0.5
DEADLINE_S = 60.0


def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            sys.exit("it did not come to this within a minute")
        time.sleep(0.05)


def started():
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    conf = dict(raftMinTimeout=TIMEOUT_S, raftMaxTimeout=2 * TIMEOUT_S, autoTick=True)
    nodes = [SyncObj(me, [other for other in addresses if other != me], conf=SyncObjConf(**conf)) for me in addresses]
    until(lambda: len({node.getStatus()["leader"] and node.getStatus()["leader"].id for node in nodes}) == 1)
    until(lambda: all(node.getStatus()["leader"] is not None and node.isReady() for node in nodes))
    leader = next(node for node in nodes if node.getStatus()["leader"].id == node.getStatus()["self"].id)
    return leader, [node for node in nodes if node is not leader]


def described(node, leader_id):
    status = node.getStatus()
    named = {None: "none"}.get(status["leader"], "another")
    if status["leader"] is not None and status["leader"].id == leader_id:
        named = "the one that is gone"
    state = ("follower", "candidate", "leader")[status["state"]]
    return f"{state}, leader: {named}, has_quorum: {status['has_quorum']}"


def connected(node):
    return sum(value == 2 for name, value in node.getStatus().items() if name.startswith("partner_node_status"))


leader, (first, second) = started()
leader_id = leader.getStatus()["self"].id
second.destroy()
leader.destroy()
until(lambda: connected(first) == 0)
seen = set()
end = time.monotonic() + 10 * TIMEOUT_S
while time.monotonic() < end:
    seen.add(described(first, leader_id))
    time.sleep(0.1)
print("both others gone, for ten timeouts:", *sorted(seen))
first.destroy()
PYTHON

seen=$("$folder/venv/bin/python" "$folder/seen.py")
printf '%s\n' "$seen"
[ "$seen" = "both others gone, for ten timeouts: follower, leader: the one that is gone, has_quorum: False" ]
