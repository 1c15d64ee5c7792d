"""Pass secrets to Spark tasks without revealing them: Kafka's settings, including passwords.

::

    handed = hand_over(spark, settings, settings)      # in the driver
    Consumer(handed.take())                            # in a task

Spark serializes everything that a function refers to into a block, which its tasks fetch. With a local master
that block has only the path of a file in the session's own folder, which only the current user can read. On a
cluster the block has the value itself; if it contains a secret, Spark must authenticate the clients that
fetch it.
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

#: The hint for a cluster whose executors anyone on its network can connect to.
AUTHENTICATE_HINT = (
    "set spark.authenticate and spark.authenticate.secret for the cluster, and for bwtui in "
    "spark-defaults.conf in the folder SPARK_CONF_DIR"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskSecret(Generic[T]):
    """A value for the tasks: itself, or the path of its file."""

    value: T | None
    path: Path | None = None

    def __repr__(self) -> str:
        # The value may contain secrets.
        return "Handed()"

    def take(self) -> T:
        """Return the value; call this in a task."""
        return cast(T, self.value if self.path is None else pickle.loads(self.path.read_bytes()))


def hand_over(spark: SparkSession, value: T, *settings: Mapping[str, Any]) -> TaskSecret[T]:
    """Wrap ``value``, which contains ``settings``, for use in the functions of a job.

    Raises RefusedError for a cluster that would reveal a secret in the settings to its whole network.
    """
    conf = spark.sparkContext.getConf()
    if not conf.get("spark.master", "").startswith("local"):
        has_secret = any(is_secret(name) for one in settings for name in one)
        if has_secret and conf.get("spark.authenticate", "false").lower() != "true":
            raise RefusedError(
                "this Spark cluster has no spark.authenticate, so Kafka's password would be "
                "readable by anyone on its network",
                AUTHENTICATE_HINT,
            )
        return TaskSecret(value)
    # NamedTemporaryFile is private to the user; the session removes it together with the folder.
    with tempfile.NamedTemporaryFile(dir=conf.get("spark.local.dir"), prefix="handed-", delete=False) as file:
        pickle.dump(value, file)
    return TaskSecret(None, Path(file.name))
