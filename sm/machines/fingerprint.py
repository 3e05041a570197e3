"""The fingerprint of a machine's code: equal code gives equal fingerprints on every node.

A node rebuilds its state by applying its log with the code that it has now, so changed code may change acknowledged
results. The fingerprint covers the sources, as their loaders return them, of the module that defines the class and of
every loaded module of its top-level package. Nothing is normalised, so a changed comment or docstring looks like any
other change. Imports from other packages are not covered.
"""

import sys
from hashlib import sha256
from types import ModuleType

from ..machine import StateMachine
from .registry import BUILT_IN

UNKNOWN = b""
"""The fingerprint of a machine with a module that has no source: bytecode, an extension, or interactive code."""

SHORT_CHARACTERS = 12
"""Of a fingerprint in hex, where people read it."""


def short(code: bytes) -> str:
    """A fingerprint as people read it."""
    return code.hex()[:SHORT_CHARACTERS]


def fingerprint_of(machine: type[StateMachine]) -> bytes:
    """The sha256 of the machine's code, `UNKNOWN` if a source is missing. Call it when its module has been imported.

    For a built-in machine only name and version count: its code may change as long as its results do not.
    """
    if machine in BUILT_IN.values():
        return sha256(_framed("built in", machine.name, str(machine.version))).digest()
    found = sha256()
    for name in _modules_of(machine.__module__):
        source = _source_of(name, sys.modules.get(name))
        if source is None:
            return UNKNOWN
        found.update(_framed(name, source))
    return found.digest()


def _modules_of(name: str) -> list[str]:
    """The loaded modules of the same top-level package; of `__main__` or a single file that module alone."""
    package = name.partition(".")[0]
    loaded = list(sys.modules)  # Another thread may import at any time.
    return sorted({name} | {other for other in loaded if other == package or other.startswith(package + ".")})


def _source_of(name: str, module: ModuleType | None) -> str | None:
    spec = getattr(module, "__spec__", None)
    loader = spec.loader if spec is not None else getattr(module, "__loader__", None)
    get_source = getattr(loader, "get_source", None)
    if get_source is None:
        return None
    try:
        # `python -m package` runs a module as `__main__`, whose loader knows it by its own name.
        source: str | None = get_source(name if spec is None else spec.name)
    except (ImportError, OSError, SyntaxError, UnicodeError):
        return None  # The file is gone or cannot be decoded.
    return source


def _framed(*texts: str) -> bytes:
    """The texts, each after its length, so that no two lists of them give the same bytes."""
    parts = [text.encode("utf-8", "surrogatepass") for text in texts]
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)
