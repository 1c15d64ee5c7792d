"""Choose the engine of an audit: threads of this process while it is small, otherwise Spark."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from bwtui.spark.lazy_session import LazySparkSession
from bwtui.verify.digests import DigestEngine
from bwtui.verify.engines.thread_engine import ThreadDigestEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEMORY = "1g"


class DigestEngines(LazySparkSession):
    """The engines available to an audit."""

    def __init__(self, master: str | None, on_phase: Callable[[str], None]) -> None:
        """Take ``master``, the Spark master that the user named, if any: then Spark is used."""

        def opened() -> contextlib.AbstractContextManager["SparkSession"]:
            from bwtui.spark.session import LOCAL, spark_session

            return spark_session(master or LOCAL, "bwtui verify", memory=_MEMORY)

        super().__init__(opened, on_phase, is_wanted=master is not None)

    def of(self, rows: int) -> DigestEngine:
        """Return the engine for this number of rows: the recording's messages plus its topics' offsets."""
        if self.does_without(rows):
            return ThreadDigestEngine()
        from bwtui.verify.engines.spark_engine import SparkDigestEngine

        return SparkDigestEngine(self.spark())
