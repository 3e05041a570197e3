"""`cluster/DESIGN.md` lists every route, every problem and every room."""

import re
from pathlib import Path

from quire.cluster import http
from quire.cluster.http.app import ROUTES
from quire.cluster.http.problems import ANSWERS

CLUSTER = Path(next(iter(http.__path__))).resolve().parent
ROWS = [line.split("|")[1:-1] for line in (CLUSTER / "DESIGN.md").read_text().splitlines() if line.startswith("| ")]


def test_every_route_has_a_row() -> None:
    rows = {cell for first, *_ in ROWS for cell in re.findall("`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", first)}

    assert rows == {f"{route.method} {route.path}" for route in ROUTES}


def test_every_problem_has_a_row_with_its_status() -> None:
    rows = {
        (int(status), name)
        for first, second, *_ in ROWS
        for status in re.findall(r"[45]\d\d", first)
        for name in re.findall("`([a-z-]+)`", second)
    }

    assert {(answer.status, answer.name) for answer in ANSWERS.values()} - rows == set()


def test_every_room_has_a_row() -> None:
    rows = {name for first, *_ in ROWS for name in re.findall("`([a-z_/]+)/`", first)}

    assert {path.parent.relative_to(CLUSTER).as_posix() for path in CLUSTER.glob("*/**/__init__.py")} == rows
