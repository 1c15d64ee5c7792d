"""What a task has to know and nobody else may: Kafka's settings, with the passwords in them.

::

    handed = hand_over(spark, settings, settings)      # beside the driver
    Consumer(handed.take())                            # in a task

Spark packs all that a function refers to into a block, from which its tasks fetch it. With a local master
that block has only the path of a file, which lies in the session's own folder and which only our user can
read. On a cluster the block has the value itself. If there is a secret in it, Spark must ask who fetches it.
"""

import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pyspark.sql import SparkSession

from bwtui.errors import RefusedError
from bwtui.masking import is_secret

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handed(Generic[T]):
    """A value on its way to the tasks: itself, or the file that it lies in."""

    value: T | None
    path: Path | None = None

    def __repr__(self) -> str:
        # The value may hold secrets.
        return "Handed()"

    def take(self) -> T:
        """Return the value, in a task."""
        return cast(T, self.value if self.path is None else pickle.loads(self.path.read_bytes()))


def hand_over(spark: SparkSession, value: T, *settings: Mapping[str, Any]) -> Handed[T]:
    """Return what the functions of a job may hold in place of ``value``, in which ``settings`` are.

    Raises RefusedError for a cluster that would tell a secret of the settings to everybody in its network.
    """
    conf = spark.sparkContext.getConf()
    if not conf.get("spark.master", "").startswith("local"):
        has_secret = any(is_secret(name) for one in settings for name in one)
        if has_secret and conf.get("spark.authenticate", "false").lower() != "true":
            raise RefusedError(
                "this Spark cluster would give Kafka's password to everyone: it has no spark.authenticate",
                "set spark.authenticate and spark.authenticate.secret for the cluster, and for bwtui in the "
                "spark-defaults.conf of the folder that SPARK_CONF_DIR names",
            )
        return Handed(value)
    # Only for our user, by itself; the session's end takes it away with the folder.
    with tempfile.NamedTemporaryFile(dir=conf.get("spark.local.dir"), prefix="handed-", delete=False) as file:
        pickle.dump(value, file)
    return Handed(None, Path(file.name))
