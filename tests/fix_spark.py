"""Fixture: one Spark session for all tests that ask for it; it costs seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bwtui.pipeline.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session on two cores."""
    with spark_session("local[2]", "bwtui-tests") as session:
        yield session
