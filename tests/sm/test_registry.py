"""Machines by name and by package.module:Class."""

import sys
from pathlib import Path

import pytest

from quire.sm import ArithmeticMachine, LogMachine, MachineUnknown, StateMachine, default_initial, load_machine
from quire.sm.machines.registry import recorded_machine, search_current_folder
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


def test_a_recorded_name_selects_a_built_in_machine_and_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "machines_of_an_attacker.py").write_text("class Machine: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    recorded = "machines_of_an_attacker:Machine"

    assert recorded_machine("arithmetic", None) is ArithmeticMachine
    for name in (recorded, OWN_MACHINE, "", "machines_of_an_attacker"):
        with pytest.raises(
            MachineUnknown, match=r"is not built in; no recorded name is imported: .* --machine"
        ) as unknown:
            recorded_machine(name, None)
        assert unknown.value.spec == name
    with pytest.raises(MachineUnknown, match="built in are"):
        recorded_machine(recorded, "")
    assert "machines_of_an_attacker" not in sys.modules
    assert recorded_machine(recorded, OWN_MACHINE) is test_checks.Even


def test_the_current_folder_is_searched_last_and_only_for_a_class_of_one_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))

    search_current_folder("kv")
    assert sys.path == before
    search_current_folder("noted:Counters")
    assert sys.path == [*before, str(tmp_path)]
