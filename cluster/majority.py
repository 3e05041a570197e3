"""That voters are too few, as a sentence: the same from a node and from a client."""

from collections.abc import Sequence


def no_majority(most: int, voters: int, absent: Sequence[str], *, is_known: bool = True) -> str:
    """Say that `most` voters (at most so many, unless `is_known`) are there, and which to start; empty if they do."""
    lacking = voters // 2 + 1 - most
    if not voters or lacking <= 0:
        return ""
    start = " or ".join(absent) if lacking == 1 else f"{lacking} of {', '.join(absent)}"
    count = f"{'' if is_known else 'at most '}{most} of {voters} voters {'is' if most == 1 else 'are'}"
    return f"{count} no majority: start {start}"
