"""Rule 8, the opening of a stream: where do a follower's log and the leader's part?

Both sides know their epochs: (epoch, first index) pairs. One leader an epoch (rule 1) writes one sequence of frames,
so two logs that share an epoch share all of its frames up to the shorter end, and everything before (Raft 5.3, Log
Matching). Going back from the follower's newest epoch, the first that the leader has, too, gives the boundary:

    follower  | e1      | e2   | e4 ...            boundary = min(end of e2 there, end of e2 here)
    leader    | e1      | e2       | e3 | e5 ...

That is KIP-101's and KIP-279's epoch comparison, with all of the follower's epochs in one message instead of a round
trip each. It is a frame boundary on both sides: the side on which the epoch ends first has whole frames only.
"""

from collections.abc import Sequence


def epoch_ends(epochs: Sequence[tuple[int, int]], highest_index: int) -> dict[int, int]:
    """Epoch -> the index behind its last record, for ascending (epoch, first index) pairs."""
    return {
        epoch: epochs[place + 1][1] if place + 1 < len(epochs) else highest_index
        for place, (epoch, _) in enumerate(epochs)
    }


def match_boundary(
    leader: Sequence[tuple[int, int]],
    leader_highest: int,
    follower: Sequence[tuple[int, int]],
    follower_highest: int,
) -> int | None:
    """The greatest index up to which the follower's log is a prefix of the leader's; None: no epoch is shared.

    Nodes of one cluster share epoch 0, the genesis, so None takes more divergent epochs than one opening names.
    """
    leader_ends = epoch_ends(leader, leader_highest)
    for epoch, follower_end in reversed(epoch_ends(follower, follower_highest).items()):
        if epoch in leader_ends:
            return min(follower_end, leader_ends[epoch])
    return None if follower else 0
