"""``bwtui schema``: check the tables' schemas against the schema registry."""

import contextlib
from typing import TYPE_CHECKING, Any, TextIO

import click

from bwtui.cli.inputs.relay_options import ALL, json_option, relay_option, takes
from bwtui.cli.output.table import columns
from bwtui.console import say, say_json
from bwtui.errors import DifferencesFound, UsageError

if TYPE_CHECKING:
    from bwtui.relay.routes.table_checks import TableCheck

_EPILOG = """\b
Examples:
  bwtui schema check -d service=shop -r http://registry:8081
  bwtui schema check -d service=shop -r http://registry:8081 --ddl migration.sql
  bwtui schema check --relay shop --ddl migration.sql
  pg_dump --schema-only … | bwtui schema check -d service=scratch --ddl - --json

\b
The script runs in one transaction, which is rolled back. It holds its locks until
then, with a lock timeout of three seconds; sequence values that it draws stay used.
The command takes the options of connect, because topics depend on them. Exit code
1: a schema is incompatible; 4: a server can't be reached.
"""


_MEND = (
    "the lines above give the reasons: change these tables, exclude them with --exclude-table, or "
    "relax the compatibility level"
)


@click.group(epilog="\b\nExample:\n  bwtui schema check -d service=shop --ddl migration.sql")
def schema() -> None:
    """Check the tables' schemas against the schema registry."""


@schema.command(epilog=_EPILOG)
@takes(*ALL)
@click.option(
    "--ddl",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Check the tables as they would be after this script; - reads stdin.",
)
@relay_option("Take every setting from the running relay NAME.")
@json_option("Print one JSON object with all tables.")
def check(ddl: TextIO | None, relay: str | None, as_json: bool, **options: Any) -> None:
    """Check each table's key and value against the registry. Nothing is registered or changed."""
    from bwtui.cli.connect import relay_settings
    from bwtui.cli.inputs.audit_sources import refuse_replaced, running_settings, without_variables
    from bwtui.encode.registry import SchemaRegistry
    from bwtui.relay.routes.table_checks import check_schemas

    if relay is not None:
        refuse_replaced("table", "exclude_table")
    settings = relay_settings(options) if relay is None else running_settings(relay)
    if settings.output_format != "avro":
        raise UsageError("JSON messages have no schema", "omit -f json")
    script = _read(ddl) if ddl else ""
    registry = SchemaRegistry(settings.schema_registry, settings.registry_config)
    with without_variables() if relay is not None else contextlib.nullcontext():
        checked = check_schemas(settings, registry, script)
    bad = [table for table in checked if not table.ok]
    if as_json:
        say_json({"ok": not bad, "tables": {table.table: table.to_json() for table in checked}})
    else:
        _show(checked)
    if bad:
        raise DifferencesFound(f"{len(bad)} of {len(checked)} tables would stop the relay", _MEND)


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file.name} is not UTF-8", "convert it to UTF-8 first") from error


def _show(tables: "list[TableCheck]") -> None:
    rows: list[tuple[str, str, str, str]] = []
    notes: list[str] = []
    for table in tables:
        for part in table.parts.values():
            rows.append((table.table, part.subject, part.rule, part.state))
            notes += [f"{part.subject}: {reason}" for reason in part.reasons]
            if part.state == "incompatible" and not part.reasons:
                notes.append(f"{part.subject}: incompatible under {part.rule}")
        if table.refusal is not None:
            rows.append((table.table, "-", "-", "refused"))
            notes.append(f"{table.table}: {table.refusal.message}")
    say(*columns(("TABLE", "SUBJECT", "RULE", "RESULT"), rows), *(f"  {note}" for note in notes))
