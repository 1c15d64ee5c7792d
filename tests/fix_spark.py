"""Fixture: one Spark session for all tests that ask for it; it costs seconds to start."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from bwtui.pipeline.environment import environment
from bwtui.pipeline.session import spark_session

#: What is compiled quickly suits short sessions. For the processes that a test starts, too.
QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}

# Making an archive of Spark's classes costs more than a test run has from it.
os.environ.setdefault("BWTUI_SPARK_ARCHIVE", "off")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session on two cores."""
    with ExitStack() as stack:
        with environment(**QUICK):
            session = stack.enter_context(spark_session("local[2]", "bwtui-tests"))
        yield session
