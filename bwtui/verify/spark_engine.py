"""The tasks of an audit on Spark: on this machine's cores, or on a cluster's."""

from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

from bwtui.kafka.client import Config
from bwtui.spark.failure import in_task
from bwtui.spark.task_secrets import hand_over
from bwtui.verify.digests import DecodeResult, DigestJob


class SparkDigestEngine:
    """Runs the tasks in a Spark session."""

    is_here = False

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._spark = spark

    @property
    def cores(self) -> int:
        """Number of tasks that run at the same time."""
        return self._context.defaultParallelism

    def run(self, job: DigestJob, config: Config) -> Iterable[DecodeResult]:
        """Run all tasks. Raises Spark's errors, through the session."""
        handed = hand_over(self._spark, dict(config), config)

        @in_task
        def run(numbers: Iterable[int]) -> Iterator[DecodeResult]:
            for number in numbers:
                yield from job.run(number, handed.take())

        # Not a DataFrame: compiling a plan for it takes Java longer than the tasks.
        count = len(job.tasks)
        results: list[DecodeResult] = (
            self._context.parallelize(range(count), count).mapPartitions(run).collect()
        )
        return results
