"""``bwtui record``: write a database's changes into a recording, without Kafka and registry."""

import dataclasses
from typing import Any

import click

from bwtui.cli.connect import run_headless
from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import json_option
from bwtui.errors import UsageError

_EPILOG = """\b
Examples:
  bwtui record -d "host=db dbname=shop" -s shop -o ./shop --until-caught-up
  bwtui record -d service=shop -s shop -o ./shop          until Ctrl-C
  bwtui open ./shop

\b
The messages are encoded as 'bwtui connect' would send them, with schema ids of the
recording's own; 'bwtui replay' registers the schemas and inserts the registry's ids.
"""


@click.command(epilog=_EPILOG)
@click.option("-o", "--output", metavar="DIR", help="Folder of the recording: a new one, or one to continue.")
@relay_options.takes(
    *("postgres", "slot", "output-format", "allow-unkeyed", "topic-prefix", "on-error", "skip-snapshot"),
    *("snapshot-by", "snapshot-workers", "spark-master"),
    *(
        "accept-divergence",
        "accept-settings",
        "failover",
        "wait-for-services",
        "publication",
        "table",
        "exclude-table",
        "new-tables",
        "on-gap",
        "headers",
        "toast",
        "namespace",
        "connect-names",
        "on-record-error",
    ),
    *("segment-bytes", "segment-seconds", "snapshot-share", "endpos", "until-caught-up", "name"),
    *("listen", "log-format"),
    # Accepted only to be rejected with an explanation.
    hidden=("on-record-error",),
)
@json_option("Write one status object per second to stdout.")
def record(output: str | None, as_json: bool, **options: Any) -> None:
    """Record a database's changes into files.

    Like 'bwtui connect', it creates publication and slot, copies the tables, and streams their changes. It
    confirms a change to PostgreSQL once the change is on disk.
    """
    if not output:
        raise UsageError("-o DIR is missing", "give the folder of the recording")
    settings = relay_options.load({**options, "record": output}).settings()
    relay_options.need_packages(settings)
    if settings.on_record_error != "stop":
        raise UsageError(
            "'bwtui record' only writes the recording, so it must stop when that fails",
            "use --on-record-error stop, or remove the setting where it is set",
        )
    run_headless(dataclasses.replace(settings, record_only=True), as_json)
