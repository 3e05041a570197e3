"""Checking a request's commands before anything of it is appended."""

from collections.abc import Sequence
from typing import Any

from .errors import CheckFailed, reason_of
from .machine import Refused, StateMachine


def check_batch(machine: StateMachine, commands: Sequence[Any]) -> list[list[Any]]:
    """The refused ones as [[place, code, text], ...], places counted from 0; [] when all of them pass.

    Raises:
        CheckFailed: the machine's check raised something else than Refused.
    """
    faster = getattr(machine, "check_batch", None)
    if faster is not None:
        try:
            refused: list[list[Any]] = faster(commands)
        except Exception as error:
            raise CheckFailed(place=None, reason=reason_of(error)) from error
        return refused
    return check_one_by_one(machine, commands)


def check_one_by_one(machine: StateMachine, commands: Sequence[Any]) -> list[list[Any]]:
    """What `check_batch` gives, by the machine's plain `check`."""
    refused: list[list[Any]] = []
    for place, command in enumerate(commands):
        try:
            machine.check(command)
        except Refused as refusal:
            refused.append([place, refusal.code, refusal.text])
        except Exception as error:
            raise CheckFailed(place=place, reason=reason_of(error)) from error
    return refused
