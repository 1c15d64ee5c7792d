"""What those who wait for a job are told of it."""

from pathlib import Path

from pyspark.sql import SparkSession

from bwtui.pipeline.counting import counting


def test_rows_are_counted_up_to_all_of_them(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(50_000).write.parquet(str(tmp_path / "rows"))
    told: list[tuple[int, int]] = []
    with counting(spark, 50_000, lambda done, total: told.append((done, total))):
        assert spark.read.parquet(str(tmp_path / "rows")).selectExpr("sum(id * 2) s").first() is not None
    assert told[-1] == (50_000, 50_000)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_where_nobody_counts_nothing_is_asked(spark: SparkSession) -> None:
    with counting(spark, 3, None):
        assert spark.range(3).count() == 3
