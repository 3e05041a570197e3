"""The style as tests: each rule holds for the tree, finds its bad samples, and passes its good ones."""

import tomllib
from pathlib import Path, PurePosixPath

import pytest

from tests.tidy import code, house, imports, testing, words
from tests.tidy.sample import Sample, samples_of
from tests.tidy.tree import Rule, Tree

TOP = Path(__file__).resolve().parents[2]

RULES: dict[str, Rule] = {
    "import directions": imports.directions,
    "no circles": imports.no_circles,
    "core without io": imports.core_without_io,
    "simulation apart": imports.simulation_apart,
    "one wrapper each": imports.one_wrapper_each,
    "code by name": imports.code_by_name,
    "top level": house.top_level,
    "room sizes": house.room_sizes,
    "small modules": house.small_modules,
    "machine paths": house.machine_paths,
    "citations": house.citations,
    "file names": words.file_names,
    "identifiers": words.identifiers,
    "flags": words.flags,
    "sizes": code.sizes,
    "class sizes": code.class_sizes,
    "uses of any": code.uses_of_any,
    "docstrings": code.docstrings,
    "bare asserts": code.bare_asserts,
    "swallowed errors": code.swallowed_errors,
    "journal kinds": code.journal_kinds,
    "stubs": code.stubs,
    "unfinished": code.unfinished,
    "possessive patterns": code.possessive_patterns,
    "sleeps": testing.sleeps,
    "always run": testing.always_run,
}


@pytest.fixture(scope="module")
def checkout() -> Tree:
    """Its syntax trees take half a GiB, which every later collection of garbage would search."""
    return Tree.of_checkout(TOP)


def samples(*, bad: bool) -> list[object]:
    return [
        pytest.param(rule, sample, id=f"{rule}: {sample.why}")
        for rule in RULES
        for sample in samples_of(rule)
        if sample.bad == bad
    ]


@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps_every_rule(rule: str, checkout: Tree) -> None:
    findings = sorted({str(finding) for finding in RULES[rule](checkout)})

    assert not findings, "\n".join(["", *findings])


@pytest.mark.parametrize(("rule", "sample"), samples(bad=True))
def test_each_rule_finds_its_bad_samples(rule: str, sample: Sample, tmp_path: Path) -> None:
    assert list(RULES[rule](sample.lay_out(tmp_path)))


@pytest.mark.parametrize(("rule", "sample"), samples(bad=False))
def test_each_rule_passes_its_good_samples(rule: str, sample: Sample, tmp_path: Path) -> None:
    assert not [str(finding) for finding in RULES[rule](sample.lay_out(tmp_path))]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_bad_and_a_good_sample(rule: str) -> None:
    assert {sample.bad for sample in samples_of(rule)} == {True, False}


def test_the_links_of_the_tree_are_there_and_point_to_the_packages(checkout: Tree) -> None:
    assert not [str(finding) for finding in house.links(checkout)]


def test_the_type_checkers_see_every_package() -> None:
    settings = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]

    assert {str(link) for link in house.LINKS} <= set(settings["pyright"]["include"])
    assert settings["mypy"]["files"][:2] == ["src", "tests"]


@pytest.mark.parametrize("harm", ["missing", "a folder", "elsewhere", "dangling", "one more"])
def test_a_wrong_link_is_found(harm: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "quire").mkdir(parents=True)
    for name in ["cluster", "log", "pipeline", "replication", "sm"]:
        (tmp_path / name).mkdir()
        (tmp_path / "src" / "quire" / name).symlink_to(f"../../{name}")
    assert not list(house.links(Tree.of_folder(tmp_path)))

    link = tmp_path / "src" / "quire" / "log"
    match harm:
        case "missing":
            link.unlink()
        case "a folder":
            link.unlink()
            link.mkdir()
        case "elsewhere":
            link.unlink()
            link.symlink_to("../../sm")
        case "dangling":
            (tmp_path / "log").rmdir()
        case _:
            (tmp_path / "src" / "quire" / "extra").symlink_to("../../sm")

    assert len(list(house.links(Tree.of_folder(tmp_path)))) == 1


def test_the_tree_holds_what_git_tracks_and_not_what_it_ignores(checkout: Tree) -> None:
    assert PurePosixPath("pyproject.toml") in checkout.paths
    assert PurePosixPath("tests/tidy/test_tidy.py") in checkout.paths
    assert not [path for path in checkout.paths if ".venv" in path.parts or "__pycache__" in path.parts]


def test_a_folder_outside_git_is_refused_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    with pytest.raises(RuntimeError, match="need a git checkout"):
        Tree.of_checkout(tmp_path)
