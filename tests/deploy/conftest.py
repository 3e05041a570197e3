"""What the set-up script makes, once for all tests that only read it."""

import pytest

from tests.deploy.compose import Installed, installed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(tmp_path_factory.mktemp("made"))
