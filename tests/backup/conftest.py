"""A gateway for the tests that need one, started once."""

from collections.abc import Generator

import pytest

from tests.backup.gateway import Gateway, running_gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running
