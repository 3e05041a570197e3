"""What a batch of commands comes to."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What a batch of commands came to: they stand at [index, index + len(results)).

    `results` has None in the place of a refused command; `refused` lists those as [place, code, text]. Of a batch that
    had to be sent again, the index is where the last of its copies stands; it was executed once.
    """

    index: int
    epoch: int
    results: list[Any]
    refused: list[list[Any]]
