"""Samples: small trees that break a rule, or almost do.

They are in `samples/`, one file a rule: `#### bad: why` or `#### good: why` opens a sample, `==== path` a file of it.
Long ones are generated here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tidy.code import ANY_BUDGET, FUNCTION_LINES, MODULE_LINES, PUBLIC_METHODS
from tests.tidy.house import ROOM_MODULES, SMALL_LINES, SMALL_MODULES
from tests.tidy.tree import Tree

SAMPLES = Path(__file__).resolve().parent / "samples"


@dataclass(frozen=True)
class Sample:
    """A few files, by path, that a rule must find fault with (`bad`) or pass."""

    bad: bool
    why: str
    files: dict[str, str]

    def lay_out(self, top: Path) -> Tree:
        """The sample as a tree in a folder."""
        for name, text in self.files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        return Tree.of_folder(top)


def samples_of(rule: str) -> list[Sample]:
    """A rule's samples: those in its file, and those generated."""
    path = SAMPLES / f"{rule.replace(' ', '-')}.txt"
    return [*(_read(path) if path.exists() else []), *(sample for of, sample in _generated() if of == rule)]


def _read(path: Path) -> Iterator[Sample]:
    for kind, why, body in re.findall(r"^#### (bad|good): (.*)\n((?:(?!#### ).*\n)*)", path.read_text(), re.MULTILINE):
        files = dict(re.findall(r"^==== (.*)\n((?:(?!==== ).*\n)*)", body, re.MULTILINE))
        yield Sample(kind == "bad", why, files)


def _generated() -> Iterator[tuple[str, Sample]]:
    lines = MODULE_LINES
    yield "sizes", Sample(True, "a module one line too long", {"log/frames.py": _lines(lines + 1)})
    long = _function(FUNCTION_LINES + 1)
    yield "sizes", Sample(True, "a function one line too long", {"tests/log/test_frames.py": long})
    method = "class Frames:\n" + "".join(f"    {line}\n" for line in long.replace("def", "async def").splitlines())
    yield "sizes", Sample(True, "a coroutine in a class", {"log/frames.py": method})
    at_limit = {"log/frames.py": _lines(lines), "log/index.py": _function(FUNCTION_LINES)}
    yield "sizes", Sample(False, "both at their limit", at_limit)

    own, most = _class("A", PUBLIC_METHODS), _class("A", PUBLIC_METHODS + 1)
    yield "class sizes", Sample(True, "a method too many", {"log/log.py": most})
    yield "class sizes", Sample(True, "a protocol", {"sm/ports.py": most.replace("A:", "A(Protocol):")})
    yield "class sizes", Sample(True, "a property too many", {"log/log.py": f"{own}    @property\n{_method('more')}"})
    mixed = {"log/log.py": f"class Log(A):\n{_method('more')}", "log/part.py": own}
    yield "class sizes", Sample(True, "one more than its base", mixed)
    private = f"{own}{_method('_private')}{_method('__len__')}    @one.setter\n{_method('f0')}"
    other = {"log/log.py": private, "tests/test_log.py": most, "log/part.py": f"class Part:\n{_method('f0')}"}
    yield "class sizes", Sample(False, "as many as allowed, private ones, a setter, and a test's", other)

    uses = "def walk(first: Any, more: list[Any]) -> Any: return first\n"
    budget = {"sm/walk.py": uses * (ANY_BUDGET // 3) + "X: Any = 1\n" * (ANY_BUDGET % 3)}
    yield (
        "uses of any",
        Sample(True, "one over the budget", budget | {"sm/one_more.py": 'def one(x: "Any"): return x\n'}),
    )
    yield "uses of any", Sample(False, "the whole budget, and others in tests", budget | {"tests/test_walk.py": uses})

    room = _modules(ROOM_MODULES, SMALL_LINES + 1)
    yield "room sizes", Sample(True, "one module too many", room | {"log/one_more.py": "X = 1\n"})
    apart = {"log/__init__.py": "", "log/disk/one_more.py": "X = 1\n", "docs/limits.md": "X\n"}
    yield "room sizes", Sample(False, "as many as allowed, and others elsewhere", room | apart)

    small = _modules(SMALL_MODULES, SMALL_LINES)
    yield "small modules", Sample(True, "one too many", small | {"sm/one_more.py": "X = 1\n"})
    others = {"sm/__init__.py": "", "sm/long.py": _lines(SMALL_LINES + 1), "tests/sm/test_short.py": "X = 1\n"}
    yield "small modules", Sample(False, "as many as allowed, and longer ones", small | others)


def _lines(count: int) -> str:
    return "".join(f"X{number} = {number}\n" for number in range(count))


def _class(name: str, methods: int) -> str:
    return f"class {name}:\n" + "".join(_method(f"f{number}") for number in range(methods))


def _method(name: str) -> str:
    return f"    def {name}(self): return 1\n"


def _function(count: int) -> str:
    return "def walk():\n" + "".join(f"    x{number} = {number}\n" for number in range(count - 1))


def _modules(count: int, lines: int) -> dict[str, str]:
    return {f"log/part_{number}.py": _lines(lines) for number in range(count)}
