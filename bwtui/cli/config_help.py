"""The text of ``bwtui connect --config-help``."""

import shutil
import textwrap
from collections.abc import Iterator

from bwtui.cli.options.librdkafka import LibrdkafkaProperty, properties
from bwtui.kafka.config import DEFAULTS, FIXED

_HEAD = """\
-C KEY=VALUE sets a producer property of librdkafka, and -T KEY=VALUE a topic property. Both are repeatable,
and have a table in bwtui.toml: [kafka] and [topic]. Put passwords there, because every user of the machine
can read command lines. BWTUI_KAFKA_CONFIG and BWTUI_TOPIC_CONFIG take one KEY=VALUE per line.
"""
_MISSING = (
    "the list of librdkafka's properties is not available here; see CONFIGURATION.md in librdkafka's "
    "documentation"
)


def config_help() -> str:
    """Return the properties that -C and -T accept, and those that bwtui sets itself."""
    width = min(shutil.get_terminal_size().columns, 110)
    lines = [
        textwrap.fill(_HEAD.replace("\n", " "), width),
        "",
        "Fixed by bwtui (other values are rejected):",
    ]
    lines += [f"  {_kept(key, allowed)}: {reason}" for key, (allowed, reason) in FIXED.items()]
    lines += ["", "Defaults of bwtui, which -C and -T can change:"]
    lines += [f"  {key}={_text(value)}" for key, value in DEFAULTS.items()]
    listed = properties()
    if not listed:
        return "\n".join([*lines, "", _MISSING])
    for topic, title in ((False, "Global properties (-C):"), (True, "Topic properties (-T):")):
        lines += ["", title]
        for entry in listed:
            if entry.topic == topic:
                lines += _entry(entry, width)
    return "\n".join(lines)


def _kept(key: str, allowed: tuple[str, ...]) -> str:
    return f"{key}={' or '.join(allowed)}" if allowed else key


def _entry(entry: LibrdkafkaProperty, width: int) -> Iterator[str]:
    yield f"  {entry.name}"
    facts = []
    if entry.range:
        facts.append(entry.range)
    if entry.name in FIXED:
        facts.append("fixed by bwtui")
    elif entry.name in DEFAULTS:
        facts.append(f"default {_text(DEFAULTS[entry.name])} (librdkafka's is {entry.default or 'empty'})")
    elif entry.default:
        facts.append(f"default {entry.default}")
    text = entry.description + (f" [{'; '.join(facts)}]" if facts else "")
    yield from textwrap.wrap(text, width, initial_indent="      ", subsequent_indent="      ")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
