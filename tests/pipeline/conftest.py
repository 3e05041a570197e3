"""One Spark for all tests of the pipeline: a bare start takes longer than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.sessions import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session in this process."""
    session = local_session()
    yield session
    session.stop()
