"""Tests of the public types. mypy and pyright check these modules; only `test_typing` runs anything."""
