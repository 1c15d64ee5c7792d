"""No two identifiers map to the same name."""

import re

from hypothesis import given
from hypothesis import strategies as st

from bwtui.encode.names import ESCAPED_FIELD, MAX_TOPIC, avro_name, topic_name
from tests.escaped_names import unescape

# PostgreSQL's identifiers: 1 to 63 bytes without a zero byte; small alphabets make near misses likely.
_anything = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=63)
_tricky = st.text(st.sampled_from("_x05fae.-é 1Z"), min_size=1, max_size=12)
identifiers = (_anything | _tricky).filter(lambda name: len(name.encode()) <= 63)
prefixes = st.sampled_from(("", "p", "p.q", "_x5f_", "__"))


@given(identifiers)
def test_an_avro_name_is_legal_and_reads_back(identifier: str) -> None:
    name = avro_name(identifier)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    assert name != ESCAPED_FIELD
    assert unescape(name) == identifier


@given(prefixes, identifiers | st.just("public"), identifiers)
def test_a_topic_is_legal_and_reads_back(prefix: str, namespace: str, table: str) -> None:
    topic = topic_name(prefix, namespace, table)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", topic)
    assert topic not in (".", "..")
    assert len(topic) <= MAX_TOPIC
    hashed = re.search(r"_x0[0-9a-f]{40}\Z", topic)
    if hashed is not None:
        assert len(topic) == MAX_TOPIC
        return
    parts = topic.removeprefix(f"{prefix}." if prefix else "").split(".")
    found = [unescape(part) for part in parts]
    assert found == ([table] if namespace == "public" else [namespace, table])


@given(st.sets(st.tuples(identifiers | st.just("public"), identifiers), min_size=2, max_size=40), prefixes)
def test_two_tables_never_share_a_topic(tables: set[tuple[str, str]], prefix: str) -> None:
    topics = {topic_name(prefix, namespace, table) for namespace, table in tables}
    assert len(topics) == len(tables)
