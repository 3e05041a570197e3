"""Machines by name and by package.module:Class."""

from pathlib import Path

import pytest

from quire.sm import ArithmeticMachine, LogMachine, MachineUnknown, StateMachine, default_initial, load_machine
from tests.sm import test_checks

OWN_MACHINE = f"{test_checks.__name__}:Even"

BROKEN_MACHINES = """
class NoApply:
    name = "a"
    version = 1
    def check(self, command): ...
    def query(self, request): ...
    def snapshot(self): ...
    def restore(self, chunks): ...

class Nameless(NoApply):
    name = ""
    def apply(self, command, context): ...

class Versionless(Nameless):
    name = "a"
    version = True

number = 5
"""


def test_the_built_in_machines_are_found_by_name() -> None:
    assert load_machine("arithmetic") is ArithmeticMachine
    assert load_machine("log") is LogMachine


def test_your_own_machine_is_found_by_module_and_class() -> None:
    assert load_machine(OWN_MACHINE) is test_checks.Even


@pytest.mark.parametrize("machine", [ArithmeticMachine(), LogMachine(), test_checks.Even()])
def test_each_of_them_has_the_whole_protocol(machine: StateMachine) -> None:
    assert isinstance(machine, StateMachine)


def test_the_initial_value_is_the_class_s_own_where_none_is_given() -> None:
    assert default_initial(ArithmeticMachine) == 42
    assert default_initial(LogMachine) is None
    assert default_initial(test_checks.Even) is None


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("kalkulator", "built in are arithmetic, kv, log"),
        ("", "built in are"),
        (":Even", "built in are"),
        ("machines_for_this_test:", "built in are"),
        ("no_such_module_at_all:Machine", "cannot import no_such_module_at_all (ModuleNotFoundError"),
        ("..relative:Machine", "cannot import ..relative"),
        ("machines_that_raise:Machine", "cannot import machines_that_raise (ZeroDivisionError"),
        ("machines_for_this_test:Absent", "has no Absent"),
        ("machines_for_this_test:number", "number is not a class"),
        ("machines_for_this_test:NoApply", "NoApply lacks apply"),
        ("machines_for_this_test:Nameless", "Nameless.name must be"),
        ("machines_for_this_test:Versionless", "Versionless.version must be"),
    ],
)
def test_an_unknown_machine_is_an_error_that_says_why(
    spec: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machines_for_this_test.py").write_text(BROKEN_MACHINES)
    (tmp_path / "machines_that_raise.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MachineUnknown) as unknown:
        load_machine(spec)
    assert unknown.value.spec == spec
    assert reason in unknown.value.reason
