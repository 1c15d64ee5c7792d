"""``bwtui replay``: write the messages of a recording into topics again."""

import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import NumberType, dry_run_option, json_option, load, takes
from bwtui.cli.inputs.selection import selection_options
from bwtui.cli.output.progress import progress_json_option, view_of
from bwtui.console import say, say_json
from bwtui.errors import Indeterminate, mutually_exclusive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bwtui.replay.replay import ReplayOptions, ReplayTarget
    from bwtui.settings import RelaySettings

_EPILOG = """\b
Examples:
  bwtui replay recordings/shop -b kafka:9092 -r http://registry:8081 --dry-run
  bwtui replay recordings/shop --topic-prefix again
  bwtui replay recordings/shop --table orders --from-time -10m --rate 5000
  bwtui verify recordings/shop --json > report.json
  bwtui replay recordings/shop --only-missing report.json

\b
Repeat the command to continue an interrupted or killed run. docs/replay.md describes
what is preserved, and the limits of --only-missing. Exit codes: 2 refused, 3 done, with
possible duplicates, 4 no connection, 6 the recording is damaged or unfinished, 130 interrupted.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@takes("broker", "schema-registry", "kafka-config")
@selection_options
@click.option(
    "--with-repeats", is_flag=True, help="Include messages that were sent again after a restart of the relay."
)
@click.option(
    "--topic-prefix",
    metavar="P",
    help="Send to topics with prefix P and a dot in place of the recorded prefix; '' for no prefix.",
)
@click.option(
    "--keep-ids",
    is_flag=True,
    help="Keep the recorded schema ids; fail if the registry does not have each schema under its id.",
)
@click.option("--rate", metavar="N", type=NumberType(1, 10**9), help="Maximum messages per second.")
@click.option(
    "--pace",
    metavar="X",
    type=NumberType(0.001, 10**6),
    help="Keep the recorded pace, X times as fast.",
)
@click.option(
    "--only-missing",
    metavar="REPORT",
    type=click.Path(path_type=Path),
    help="Only messages that 'bwtui verify --json' reported missing; their order can't be restored.",
)
@dry_run_option("Only show what would be sent.")
@click.option("--restart", is_flag=True, help="Start from scratch, and ignore what an earlier run has sent.")
@click.option(
    "-y", "--yes", is_flag=True, help="Write without asking, even if the topics already contain messages."
)
@json_option("Print the result as a JSON object.")
@progress_json_option
@click.option(
    "--spark-master",
    metavar="MASTER",
    help="Spark master; on a cluster, all workers must have access to the recording. Default: local[*] "
    "on this machine, or no Spark for a small replay.",
)
def replay(
    recording: Path,
    yes: bool,
    as_json: bool,
    progress_json: bool,
    spark_master: str | None,
    with_repeats: bool,
    **arguments: Any,
) -> None:
    """Write the messages of RECORDING to Kafka again: byte for byte, and in order for each key."""
    from bwtui.cli.output.replay_console import ReplayConsole, summary, to_json
    from bwtui.cycles import collect_rarely
    from bwtui.replay.replay import Replay, ReplayJob
    from bwtui.state_folder import state_root

    names = ("broker", "schema_registry", "kafka_config", "profile")
    # The prefix only for its check: the one of a relay, in a variable or a file, does not apply here.
    prefix = {"topic_prefix": arguments["topic_prefix"]}
    settings = load({name: arguments.pop(name) for name in names} | prefix).settings()
    options = _options(arguments)
    if spark_master is not None:
        from bwtui.spark.session import check_master

        check_master(spark_master)
    selected = _selection(recording, arguments, with_repeats=with_repeats)

    # With --json nothing is written to stderr, except a bar on a terminal.
    view = view_of(as_json=as_json and not sys.stderr.isatty(), progress_json=progress_json)
    from bwtui.spark.arrow import leave_pandas_out

    collect_rarely()
    leave_pandas_out()
    with closing(target(settings)) as goal, ReplayConsole(view, yes=yes) as screen:
        job = ReplayJob(recording, goal, selected, state_root() / "replays", options)
        outcome = Replay(job, screen).run(lambda: _spark(spark_master), with_spark=spark_master is not None)
    if as_json:
        say_json(to_json(outcome))
    else:
        say(*summary(outcome))
    if outcome.doubled:
        raise click.exceptions.Exit(Indeterminate.exit_code)


def _spark(master: str | None) -> "AbstractContextManager[SparkSession]":
    from bwtui.spark.session import LOCAL, WRITE_ONCE, spark_session

    return spark_session(master or LOCAL, "bwtui replay", config=WRITE_ONCE)


def target(settings: "RelaySettings") -> "ReplayTarget":
    """Return the Kafka and the registry of the relay's settings. Raises UsageError."""
    from bwtui.cli.inputs.librdkafka import check
    from bwtui.encode.registry import SchemaRegistry
    from bwtui.kafka.client import IN_BULK, client_config, producer_config
    from bwtui.replay.replay import ReplayTarget
    from bwtui.sink.topics import TopicAdmin

    check(settings)
    client, producer = client_config(settings), producer_config(settings, defaults=IN_BULK)

    def make_topic(name: str, keyed: bool) -> None:
        TopicAdmin(client, int(producer["message.max.bytes"])).ensure(name, keyed=keyed)

    registry = SchemaRegistry(settings.schema_registry, settings.registry_config)
    return ReplayTarget(client, producer, make_topic, registry)


def _options(arguments: dict[str, Any]) -> "ReplayOptions":
    from bwtui.replay.replay import ReplayOptions

    rate, pace, prefix = arguments.pop("rate"), arguments.pop("pace"), arguments.pop("topic_prefix")
    if rate is not None and pace is not None:
        raise mutually_exclusive("--rate", "--pace")
    names = ("keep_ids", "dry_run", "restart", "only_missing")
    return ReplayOptions(prefix, rate=rate, pace=pace, **{name: arguments.pop(name) for name in names})


def _selection(recording: Path, arguments: dict[str, Any], *, with_repeats: bool) -> Any:
    from bwtui.cli.inputs.selection import selection
    from bwtui.recording.reader import open_recording

    end = 0
    if any(arguments[name] for name in ("where", "from_time", "to_time")):
        view = open_recording(recording)
        end = view.last_time
        view.close()
    return selection(end, arguments, with_repeats=with_repeats)
