"""One copy of the checkout for all tests of pages, with the environment that the README's first command makes."""

import pytest

from tests.pages.checkout import Checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Made once: every page begins with `reset`."""
    made = Checkout(tmp_path_factory.mktemp("pages"))
    made.install()
    return made
