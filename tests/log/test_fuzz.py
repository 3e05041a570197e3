"""Both decoders, fuzzed for a bounded time; `python -m tests.log.fuzzing` runs for as long as its flags say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log import fuzz, fuzzing

RUNS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(fuzz.TARGETS))
def test_no_bytes_make_a_decoder_raise_anything_but_its_own_errors(target: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.log.fuzzing", target]
    flags = [f"-runs={RUNS}", "-seed=1", "-max_len=512", "-timeout=20", f"-artifact_prefix={tmp_path}/"]
    top = Path(__file__).parents[2]
    done = subprocess.run([*program, *flags], capture_output=True, text=True, timeout=280, cwd=top, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr, done.stderr[-4000:]


@pytest.mark.parametrize("target", sorted(fuzz.TARGETS))
def test_without_atheris_bytes_are_random(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    fuzzing.unguided(target, ["-runs=2000", "-seed=7"])
    assert "not guided" in capsys.readouterr().err


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_decode_to_what_encodes_to_the_same_bytes(raw: bytes) -> None:
    fuzz.fuzz_frames(raw)
    fuzz.fuzz_payloads(raw)
