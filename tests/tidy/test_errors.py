"""Every exception of quire has its fields and those of its parents, reads as text, and can be copied and pickled.

Each is built from the annotations of its constructor, so a new one is tested without a word here.
"""

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from pyspark.sql.types import LongType, StructField

import quire
from quire import QuireError
from quire.cluster.client import Refusal
from quire.cluster.errors import ClusterError
from quire.log import LogError
from quire.pipeline.errors import PipelineError
from quire.replication.errors import ReplicationError
from quire.sm.errors import MachineError

ROOTS = {
    "log": LogError,
    "sm": MachineError,
    "replication": ReplicationError,
    "cluster": ClusterError,
    "pipeline": PipelineError,
}
OF_OTHERS = {
    "ConnectionBroken",
    "FileFailed",
    "FileUnlinked",
    "ForkedClient",
    "MachineFaulty",
    "NotRegularFile",
    "Refused",
    "OutputLost",  # Of the command line, which no command handles as its own.
    "StrangerSentTooMuch",
}
"""Errors of an HTTP client, a device, a file, the program, a test, a socket; a machine's reply. Caught as such."""
SIMULATION = ("quire.cluster.simulator", "quire.log.simulated")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(quire.__path__, "quire."):
        if not found.name.endswith("__main__") and not found.name.startswith(SIMULATION):
            yield importlib.import_module(found.name)


EXCEPTIONS = sorted(
    {
        kind
        for module in modules()
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == module.__name__
        if kind is not QuireError
    },
    key=lambda kind: (kind.__module__, kind.__name__),
)


def a_value(kind: Any) -> Any:
    """A value of an annotated type."""
    origin, arguments = get_origin(kind), list(get_args(kind))
    if type(None) in arguments and len(arguments) > 1:
        return a_value(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return tuple(a_value(each) for each in arguments if each is not Ellipsis)
    if arguments in ([Any], [object]) or kind == Refusal:
        return [0, "CODE", "words"]  # Of a refusal: position, code, text.
    if origin in (list, Sequence):
        return [a_value(arguments[0])]
    if origin is dict:
        return {a_value(arguments[0]): a_value(arguments[1])}
    if origin is Mapping:
        return {"status": 409, "type": "urn:quire:problem:x", "detail": "words"}
    if origin is Literal:
        return arguments[0]
    if kind in (Any, object):
        return 7
    if kind is StructField:
        return StructField("index", LongType())
    if hasattr(kind, "_fields"):
        return kind(*(a_value(each) for each in get_type_hints(kind).values()))
    if is_dataclass(kind):
        return cast("type[Any]", kind)(
            *(a_value(get_type_hints(kind)[each.name]) for each in fields(kind) if each.default is MISSING)
        )
    given: dict[Any, Any] = {
        int: 7,
        str: "words",
        bytes: b"\x07",
        float: 7.5,
        bool: True,
        Path: Path("file"),
        OSError: OSError(5, "words"),
    }
    return given[kind] if kind in given else kind()


def built(kind: type[Exception], *, bare: bool = False) -> Exception:
    """The exception, with a value for each argument; with `bare`, with None for each that may be None."""
    constructor = vars(kind).get("__init__") or next(
        (vars(base)["__init__"] for base in kind.__mro__ if inspect.isfunction(vars(base).get("__init__"))), None
    )
    if constructor is None:
        return kind("words")
    hints = get_type_hints(constructor)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(constructor).parameters.items())[1:]:
        value = None if bare and type(None) in get_args(hints[name]) else a_value(hints[name])
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional.append("words")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        else:
            positional.append(value)
    return kind(*positional, **named)


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__qualname__)
def test_an_exception_has_its_parents_fields_reads_as_text_and_can_be_copied(kind: type[Exception]) -> None:
    error = built(kind)
    for parent in kind.__mro__[1:]:
        if parent in EXCEPTIONS:
            missing = vars(built(parent)).keys() - vars(error).keys()
            assert not missing, f"{kind.__name__} is a {parent.__name__} without {sorted(missing)}"

    assert str(error).strip()
    assert "None" not in str(built(kind, bare=True)), "the text has an argument that is not there"
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), vars(other)) == (kind, str(error), vars(error))
        if isinstance(error, OSError) and isinstance(other, OSError):
            assert (other.errno, other.filename) == (error.errno, error.filename)


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__qualname__)
def test_an_exception_is_in_its_packages_tree(kind: type[Exception]) -> None:
    package = kind.__module__.split(".")[1]
    assert issubclass(kind, ROOTS[package]) or kind.__name__ in OF_OTHERS
