"""How `quire serve` refuses to start: one sentence on stderr, an exit code of its own, nothing else."""

from tests.processes.cluster import Ended

FAILED = 1
USAGE = 2


def check_refused(ended: Ended, code: int, *words: str) -> None:
    """It ended with this code, and its last line on stderr is one sentence that holds these words."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.stdout == "", "it never said that it listens"
    sentence = ended.stderr.strip().splitlines()[-1]
    assert sentence.startswith("quire serve: "), ended.stderr
    for word in words:
        assert word in sentence, f"{word!r} is not in: {sentence}"
