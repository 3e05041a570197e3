"""What runs the pages finds their mistakes, each with page and line."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.pages.page import After, Kind, PageError, StandIn, parse
from tests.pages.running import Run, Wrong
from tests.pages.shell import Shell, of_session
from tests.pages.transcript import difference

pytestmark = pytest.mark.full

Runs = Callable[[str], None]


class Bare:
    """A checkout with nothing in it but this test's own interpreter."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.path = folder
        self.python = python

    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.path), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

    def reset(self) -> None:
        for path in self.path.iterdir():
            path.unlink()


@pytest.fixture
def runs(tmp_path: Path) -> Generator[Runs]:
    folder, notes = tmp_path / "checkout", tmp_path / "notes"
    folder.mkdir()
    notes.mkdir()
    pages: dict[str, str] = {}
    with Run(Bare(folder, Path(sys.executable)), lambda name: parse(name, pages[name]), notes) as run:

        def runs(text: str) -> None:
            pages["a-page"] = text
            for part in range(len(parse("a-page", text).parts)):
                run.part("a-page", part)

        yield runs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# A\n\n```sh\ntrue\nquier status\n```\n", r"a-page:5: exit code 127: quier"),
        ("```sh\nfalse; true\n```\n", r"a-page:2: exit code 1"),
        ("```sh\nfalse | cat\n```\n", r"a-page:2: exit code 1"),
        ("```sh\necho 45   # 46: the sum\n```\n", r"a-page:2: .*\n(?s:.*)- 46\n\+ 45"),
        ("```sh\ntrue   # exit code 1\n```\n", r"a-page:2: exit code 0, and not 1"),
        ("```sh\nexit\n```\n", r"a-page:2: the shell has ended"),
        ("```sh\n(exit 3) &\ntail --pid=$! -f /dev/null\n```\n", r"a-page:[23]: in the background"),
        ("```console\n$ echo one\none\n$ echo two\n2\n```\n", r"a-page:4: .*\n- 2\n\+ two"),
        ("```python\nx = 1\nprint(x / 0)\n```\n", r"a-page:2: (?s:.*)line 3, in <module>\n +print\(x / 0\)"),
        ("```pycon\n>>> 1 + 1\n3\n```\n", r"a-page:2: (?s:.*)Expected:\n +3\nGot:\n +2"),
        (
            "```sh\nsh -c 'trap \"exit 7\" INT; echo on; sleep 60 & wait'   # until Ctrl-C\n```\n",
            r"a-page:2: .*exit code 7",
        ),
        ("<!-- after: #absent -->\n\n```sh\ntrue\n```\n", r"a-page:1: a-page has no heading #absent"),
    ],
    ids=[
        "a program that is not there",
        "the first of two commands",
        "the first of a pipe",
        "a number",
        "an exit code",
        "the shell's end",
        "a job in the background",
        "an output",
        "a snippet that raises",
        "a session's output",
        "a bad end at Ctrl-C",
        "a heading that is not there",
    ],
)
def test_a_mistake_in_a_page_is_reported_with_page_and_line(text: str, says: str, runs: Runs) -> None:
    with pytest.raises(Wrong, match=says):
        runs(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A\n\n    quire status\n", "a-page:3: a block of no kind"),
        ("```\nquire status\n```\n", "a-page:2: a block of no known kind"),
        ("```bash\nquire status\n```\n", "a-page:2: a block of no known kind: bash"),
        ("<!-- not run -->\n\n```sh\ntrue\n```\n", "a-page:1: a comment of no known kind: not run"),
        ("<!-- varies: hashes -->\n\n```console\n$ true\n```\n", "a-page:1: only .* may vary, not hashes"),
        ("<!-- not run: it is long -->\n", "a-page:1: this comment is about no block"),
        ("<!-- not run: it is long -->\n\n```text\na\n```\n", "a-page:4: a listing is never run"),
    ],
    ids=["indented", "no word", "another word", "no reason", "what varies", "about no block", "about a listing"],
)
def test_a_block_or_a_comment_of_no_known_kind_is_refused(text: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        parse("a-page", text)


def test_half_a_command_is_refused() -> None:
    [block] = parse("a-page", "```sh\ntrue\nfor n in 1 2; do\n```\n").blocks

    with pytest.raises(PageError, match=r"a-page:3: bash cannot read"):
        block.commands()


def test_a_page_is_one_shell_and_one_session_of_python(runs: Runs) -> None:
    runs(
        "# Page\n\n## Before\n\n```sh\nexport WORD=here; cd /tmp\n```\n\n## Now\n\n<!-- after: #before -->\n\n"
        "```sh\nfor n in 1 2; do\n    echo $n\ndone\necho $WORD \\\n    $PWD\n```\n\n"
        "```console\n$ echo $WORD\nhere\n$ false; echo $?\n1\n```\n\n"
        "```python\nimport os\nword = os.environ['WORD']\n```\n\n```pycon\n>>> word\n'here'\n```\n"
    )


def test_what_runs_until_ctrl_c_gets_it_once_it_is_quiet(runs: Runs) -> None:
    runs(
        "```sh\necho on; sleep 600   # until Ctrl-C\nsleep 600 &\n```\n\n"
        "```python\nimport signal\nprint('on', flush=True)\nsignal.pause()  # until Ctrl-C\n```\n"
    )


def test_what_starts_over_forgets_variables_jobs_and_files(runs: Runs, tmp_path: Path) -> None:
    runs(
        "```sh\nexport WORD=here\necho a >file\n```\n\n<!-- start over -->\n\n"
        '```sh\ntest -z "$WORD" && test ! -e file\n```\n\n```toml n1.toml\nnode = "n1"\n```\n'
    )

    assert (tmp_path / "checkout" / "n1.toml").read_text() == 'node = "n1"\n'


def test_a_job_that_began_a_session_of_its_own_ends_it_before_the_shell_is_killed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, Bare(tmp_path, Path(sys.executable)).environment(), tmp_path)
    try:
        shell.run("(setsid sleep 600 & started=$!; trap 'kill $started; exit' TERM; echo $started >pid; wait) &")
        began = "[ -s pid ] && [ $(cut -d' ' -f6 /proc/$(cat pid)/stat) = $(cat pid) ]"
        shell.run(f"until {began}; do sleep 0.1; done")
    finally:
        shell.end()

    assert of_session(int((tmp_path / "pid").read_text())) == []


def test_a_stand_in_is_run_in_place_of_what_the_page_says(runs: Runs) -> None:
    runs("<!-- stand-in: far.example.org = localhost -->\n\n```console\n$ echo far.example.org\nfar.example.org\n```\n")


def test_what_is_not_run_is_not_run(runs: Runs) -> None:
    runs("<!-- not run: it fails -->\n\n```sh\nfalse\n```\n")


def test_a_page_is_read_as_steps() -> None:
    page = parse(
        "docs/a-page",
        "<!-- after: ../README.md#install -->\n\n# A page's title\n\n<!-- stand-in: a = b -->\n\n```text\nx\n```\n\n"
        "- a point\n\n    ```sh\n    ls\n    ```\n",
    )

    after, stand_in, listing, commands = page.steps
    assert isinstance(after, After)
    assert (after.target, after.anchor) == ("README.md", "install")
    assert isinstance(stand_in, StandIn)
    assert [(block.kind, block.line, block.text) for block in page.blocks] == [
        (Kind.LISTING, 8, "x\n"),
        (Kind.SHELL, 14, "ls\n"),
    ]
    assert page.sections["a-pages-title"] == [stand_in, listing, commands]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("in 0.489 s (204,418/s)", "in 1.2 s (9/s)"),
        ("a   b\n c", "a b\nc"),
        ('{"id": ...}', '{"id": "5d0c"}'),
        ("at 127.0.0.1:25391, in /tmp/quire-demo-b8swfxak", "at 127.0.0.1:31733, in /tmp/quire-demo-xyz/n1"),
        ("sha256 28e128402125eefef3", "sha256 729283af03dcef0011"),
    ],
)
def test_what_no_page_can_know_may_differ(shown: str, printed: str) -> None:
    assert not difference(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed", "varies"),
    [
        ("n1 leads epoch 2", "n1 leads epoch 3", {"nodes"}),
        ("n1 leads epoch 2", "n2 leads epoch 2", {"numbers"}),
        ("45", "46", set[str]()),
        ("127.0.0.1:7001", "127.0.0.1:7002", set[str]()),
        ("a ... c", "a b", set[str]()),
    ],
)
def test_nothing_else_may_differ(shown: str, printed: str, varies: set[str]) -> None:
    assert difference(shown, printed, varies)


def test_numbers_and_nodes_may_differ_where_the_page_says_so() -> None:
    assert not difference("n1 leads epoch 2 (asked to)", "n3 leads epoch 17 (heard nobody)", {"numbers", "nodes"})
