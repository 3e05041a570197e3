"""Tests that start nodes run in one worker, one after the other."""

import os

import pytest


@pytest.mark.alone
@pytest.mark.xdist_group("alone")
def test_a_test_that_runs_alone_is_in_the_group_that_one_worker_runs(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes the group behind a test's name. With pytest 9.2 it does not, and groups nothing."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@alone")
