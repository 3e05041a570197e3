"""The fingerprint of a machine's code: what changes it, what does not, and what has none."""

import importlib
import py_compile
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from quire.sm import ArithmeticMachine, KvMachine, LogMachine, StateMachine, fingerprint_of, load_machine

BANK = """
from .rules import fee

class Bank:
    name = "bank"
    version = 1
    def __init__(self, initial): ...
    def check(self, command): ...
    def apply(self, command, context): return fee(command)
    def query(self, request): ...
    def snapshot(self): return iter(())
    def restore(self, chunks): ...
"""
RULES = "def fee(amount): return amount - 3\n"
SOURCES = {"__init__.py": "", "machine.py": BANK, "rules.py": RULES}


@pytest.fixture
def load(tmp_path: Path) -> Generator[Callable[..., type[StateMachine]]]:
    """Load the class from a package of these sources, or from a zip of them, as a new process would."""
    path = list(sys.path)

    def forget() -> None:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] in ("bank", "bank_alone")]:
            del sys.modules[name]

    def loaded(sources: dict[str, str], *, zipped: bool = False, spec: str = "bank.machine:Bank") -> type[StateMachine]:
        forget()
        root = tmp_path / f"start-{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        for name, text in sources.items():
            file = root / ("" if spec.startswith("bank_alone") else "bank") / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        if zipped:
            with zipfile.ZipFile(root / "bank.zip", "w") as archive:
                for name, text in sources.items():
                    archive.writestr(f"bank/{name}", text)
        importlib.invalidate_caches()  # A test before this one may have had a zip at the same path.
        sys.path.insert(0, str(root / "bank.zip" if zipped else root))
        return load_machine(spec)

    yield loaded
    forget()


Load = Callable[..., type[StateMachine]]


def test_equal_code_has_an_equal_fingerprint_wherever_it_lies(load: Load) -> None:
    first, again = fingerprint_of(load(SOURCES)), fingerprint_of(load(SOURCES))

    assert first == again
    assert len(first) == 32


@pytest.mark.parametrize(
    "changed",
    [
        {"machine.py": BANK.replace("fee(command)", "fee(command) + 100")},
        {"rules.py": RULES.replace("3", "4")},
        {"rules.py": RULES + "# a comment\n"},
        {"__init__.py": '"""A bank."""\n'},
        {"rules.py": "", "machine.py": BANK.replace("from .rules import fee", RULES)},
    ],
    ids=["the machine", "a helper", "a comment", "the package", "a helper moved"],
)
@pytest.mark.parametrize("zipped", [False, True], ids=["files", "zip"])
def test_whatever_changes_in_a_module_of_the_package_changes_the_fingerprint(
    changed: dict[str, str], zipped: bool, load: Load
) -> None:
    before = fingerprint_of(load(SOURCES, zipped=zipped))

    assert fingerprint_of(load({**SOURCES, **changed}, zipped=zipped)) not in (before, b"")


def test_a_zip_has_the_fingerprint_of_the_files_in_it(load: Load) -> None:
    assert fingerprint_of(load(SOURCES, zipped=True)) == fingerprint_of(load(SOURCES))


def test_a_module_of_the_package_that_nobody_imported_does_not_count(load: Load) -> None:
    assert fingerprint_of(load({**SOURCES, "tools.py": "x = 1\n"})) == fingerprint_of(load(SOURCES))


def test_of_a_machine_in_a_single_file_that_file_counts(load: Load) -> None:
    alone = BANK.replace("from .rules import fee", RULES)
    spec = "bank_alone:Bank"

    before = fingerprint_of(load({"bank_alone.py": alone}, spec=spec))

    assert fingerprint_of(load({"bank_alone.py": alone}, spec=spec)) == before != b""
    assert fingerprint_of(load({"bank_alone.py": alone + "#"}, spec=spec)) not in (before, b"")


def test_code_without_source_is_unknown(load: Load, tmp_path: Path) -> None:
    machine = load(SOURCES)
    [rules] = [file for file in tmp_path.rglob("rules.py") if file.is_file()]
    rules.unlink()

    assert fingerprint_of(machine) == b""


def test_bytecode_alone_is_unknown(load: Load, tmp_path: Path) -> None:
    package = tmp_path / "compiled" / "bank"
    package.mkdir(parents=True)
    load(SOURCES)
    for name, text in SOURCES.items():
        (package / name).write_text(text)
        py_compile.compile(str(package / name), str(package / f"{name}c"))
        (package / name).unlink()
    for name in [name for name in sys.modules if name.partition(".")[0] == "bank"]:
        del sys.modules[name]
    sys.path.insert(0, str(package.parent))
    importlib.invalidate_caches()

    assert fingerprint_of(load_machine("bank.machine:Bank")) == b""


def test_a_class_of_no_module_is_unknown() -> None:
    machine = type("Typed", (LogMachine,), {"__module__": "typed_in"})

    assert fingerprint_of(machine) == b""


def test_of_a_built_in_machine_name_and_version_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {fingerprint_of(machine) for machine in (ArithmeticMachine, KvMachine, LogMachine)}
    assert len(found) == 3
    before = fingerprint_of(KvMachine)

    monkeypatch.setattr(KvMachine, "version", 99)

    assert fingerprint_of(KvMachine) not in found
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "quire.sm.machines.upgraded", sys)  # A module that has no source.
    assert fingerprint_of(KvMachine) == before


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_machine_that_the_program_itself_defines_has_a_fingerprint(how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        BANK.replace("from .rules import fee", RULES)
        + "from quire.sm import fingerprint_of\nprint(fingerprint_of(Bank).hex())\n"
    )
    arguments = [str(tmp_path / "program.py")] if how == "script" else ["-m", "program"]

    said = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert len(said.stdout.strip()) == 64
