"""How a test that fails is reported."""

import os


def test_a_failed_comparison_of_large_values_is_not_explained_in_full_in_ci() -> None:
    """Pytest reads these variables when a comparison fails; the difference of two lists of a MiB takes minutes."""
    assert os.environ["TESTS_PROFILE"]
    assert {"CI", "BUILD_NUMBER"}.isdisjoint(os.environ)
