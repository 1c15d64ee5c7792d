"""Which engine an audit runs on: threads of ours while it is small, or Spark, also where it was named."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from bwtui.spark.when_needed import SparkWhenNeeded
from bwtui.verify.digests import Engine
from bwtui.verify.engines.in_threads import InThreads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEMORY = "1g"


class Engines(SparkWhenNeeded):
    """What an audit may run on."""

    def __init__(self, master: str | None, on_phase: Callable[[str], None]) -> None:
        """``master`` is Spark's, if one was named: then Spark it is."""

        def opened() -> contextlib.AbstractContextManager["SparkSession"]:
            from bwtui.spark.session import LOCAL, spark_session

            return spark_session(master or LOCAL, "bwtui verify", memory=_MEMORY)

        super().__init__(opened, on_phase, is_wanted=master is not None)

    def of(self, rows: int) -> Engine:
        """Return what reads so many rows: messages of the recording and offsets of its topics, together."""
        if self.does_without(rows):
            return InThreads()
        from bwtui.verify.engines.on_spark import OnSpark

        return OnSpark(self.spark())
