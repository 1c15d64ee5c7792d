"""The events in a relay's log, each with a stable name: ``event`` in a line with ``--log-format json``.

docs/operate.md has the same table; a test compares both with every logger call.
"""

from typing import Any

#: The event name of lines that are not listed here, such as a library's.
OTHERS = "log"
EVENTS = {
    "state": "The relay's state, or the service that it waits for, has changed.",
    "error": "An error occurred; the relay continues, or reports why it ends.",
    "notice": "Information for the user.",
    "failed": "The relay or the command ends with this error.",
    "crashed": "An unexpected exception; the line has its frames.",
    "rows_dropped": "At the end: the number of rows in the dead letters.",
    "recording_given_up": "At the end: the recording was stopped early, and lacks later changes.",
    "listening": "The address on which --listen serves requests.",
    "answer_failed": "A request to --listen or to the control socket could not be answered.",
    "relay_suspended": "The process was suspended for a while, and continues.",
    "slot_differs": "The slot differs from the relay's checkpoint, or belongs to a different server.",
    "failover_slot": "The slot is a failover slot, which standbys synchronize.",
    "not_proven": "A table's topic may differ from it.",
    "proven": "A comparison has proven a table again.",
    "heal_begun": "The slot was lost, and is being recreated.",
    "heal_done": "A comparison has found topics and tables equal again.",
    "comparison_failed": "The comparison of a heal failed, and is retried.",
    "diverged": "The topics contain changes that a promoted server lacks.",
    "kafka_changed": "The Kafka cluster is a different one than before.",
    "topic_changed": "A topic was recreated or has lost records.",
    "tables_unseen": "Publications or tables could not be queried.",
    "topics_unseen": "Topics or schemas could not be queried.",
    "producer_ended": "librdkafka has ended the producer; the relay creates a new one.",
    "publication_left": "A publication that was just created could not be dropped.",
    "memory_unreadable": "A file in the relay's state folder is damaged.",
    "outcome_unwritten": "The reason for the relay's end could not be saved, or its log not kept.",
    "output_failed": "A status could not be written to stdout.",
    "reader_gone": "The reader of stdout has closed it.",
    "supervisor_untold": "The relay's status could not be sent to systemd.",
    "failpoint": "A failpoint of the tests is armed.",
}


def event(name: str, **details: object) -> dict[str, Any]:
    """Return the ``extra`` argument of a logger call: the event's name and its details for programs.

    Details are texts, numbers, or None if there is nothing to report.
    """
    return {"event": name, "details": details}
