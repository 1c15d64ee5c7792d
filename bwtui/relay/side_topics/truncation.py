"""The message of --truncate-topic: a JSON object that says which table was truncated, when and how."""

import json

from bwtui.model.lsn import format_lsn
from bwtui.pgoutput.messages import Truncate
from bwtui.relay.routes.route import TableRoute
from bwtui.sink.base import Message


def truncate_message(
    route: TableRoute, truncate: Truncate, commit_lsn: int, xid: int, timestamp: int
) -> Message:
    """Return the message for one of the tables of ``truncate``; its key is ``schema.table``."""
    name = route.relation.qualified_name
    content = {
        "table": name,
        "topic": route.topic,
        "commit_lsn": format_lsn(commit_lsn),
        "xid": xid,
        "cascade": truncate.cascade,
        "restart_identity": truncate.restart_identity,
    }
    return Message(name.encode(), json.dumps(content).encode(), timestamp)
