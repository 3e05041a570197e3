"""The README's lines on Spark, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.pages.page import read_page
from tests.pipeline.logs import append_and_flush, writing


@pytest.mark.usefixtures("spark")
def test_the_readme_s_lines_on_spark_count_commands_by_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with writing(tmp_path / "n1") as log:
        append_and_flush(log, [["add", 3], ["div", 5]], [["add", 1]], [b"raw"])
    [lines] = [block.text for block in read_page("README.md").blocks if "SparkSession" in block.text]
    known: dict[str, Any] = {}

    exec(lines.replace("data/n1", str(tmp_path / "n1")), known)

    assert isinstance(known["spark"], SparkSession)
    shown = re.findall(r"^\| *(\w+)\| *(\w+)\|$", capsys.readouterr().out, re.MULTILINE)
    assert shown == [("verb", "count"), ("NULL", "1"), ("add", "2"), ("div", "1")]
