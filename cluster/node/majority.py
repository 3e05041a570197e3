"""That the voters which a node reaches are no majority, as a sentence: which of them to start."""

from quire.replication.core.status import Status


def no_majority(status: Status) -> str:
    """Say which voters to start; empty if those that are reached may elect a leader, or if this node is no voter.

    An observer does not know whom the voters reach.
    """
    voters = status.members.voters()
    absent = [voter.node_id for voter in voters if not status.is_me(voter) and not status.is_linked(voter)]
    reached = len(voters) - len(absent)
    lacking = len(voters) // 2 + 1 - reached
    if not status.is_voter or lacking <= 0:
        return ""
    start = " or ".join(absent) if lacking == 1 else f"{lacking} of {', '.join(absent)}"
    return f"{reached} of {len(voters)} voters {'is' if reached == 1 else 'are'} no majority: start {start}"
