"""How `quire serve` refuses to start: one sentence on stderr and an exit code."""

from tests.processes.cluster import Ended

FAILED = 1
USAGE = 2


def last_sentence(ended: Ended, code: int) -> str:
    """The last line on stderr of a node that ended with this code; no traceback stands before it."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.stderr, ended.stderr
    sentence = ended.stderr.strip().splitlines()[-1]
    assert sentence.startswith("quire serve: "), ended.stderr
    return sentence


def check_refused(ended: Ended, code: int, *words: str) -> None:
    """It ended before it listened, with this code and with one sentence that holds these words."""
    sentence = last_sentence(ended, code)
    assert ended.stdout == "", "it never said that it listens"
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
