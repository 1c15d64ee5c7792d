"""The events in a relay's log, each with a stable name: ``event`` in a line with ``--log-format json``.

docs/operate.md has the same table; a test compares both with every logger call.
"""

from typing import Any

#: The event name of lines that are not listed here, such as a library's.
OTHERS = "log"
EVENTS = {
    "state": "The relay is in another state, or waits for another service.",
    "error": "Something went wrong; the relay goes on, or says why it ends.",
    "notice": "Something that its user should know.",
    "failed": "The relay or the command ends on this error.",
    "crashed": "An exception that nobody thought of; the line has its frames.",
    "rows_dropped": "At the end: so many rows are in the dead letters.",
    "recording_given_up": "At the end: the recording lacks what came after it was given up.",
    "listening": "Where --listen answers.",
    "answer_failed": "A request to --listen or to the control socket could not be answered.",
    "relay_suspended": "The process did not run for a while, and goes on.",
    "slot_differs": "The slot is not what the relay left, or its server is another.",
    "failover_slot": "The slot is one that standbys take along.",
    "not_proven": "A table's topic may differ from it.",
    "proven": "A comparison of a table that was not proven was clean.",
    "heal_begun": "The slot was lost, and is made anew.",
    "heal_done": "Topics and tables have been found equal since.",
    "comparison_failed": "The comparison of a heal failed, and is tried again.",
    "diverged": "What topics hold that a promoted server lacks.",
    "kafka_changed": "Kafka is another cluster than before.",
    "topic_changed": "A topic is not the one that it was.",
    "tables_unseen": "Publications or tables could not be looked at.",
    "topics_unseen": "Topics or schemas could not be looked at.",
    "producer_ended": "librdkafka has ended the producer; the relay makes another.",
    "publication_left": "A publication that was just made could not be dropped.",
    "memory_unreadable": "A file of the relay's state folder is not what was written.",
    "outcome_unwritten": "How the relay ended could not be written, or its log be kept.",
    "output_failed": "A status could not be written to stdout.",
    "reader_gone": "Nobody reads stdout any more.",
    "supervisor_untold": "systemd could not be told how the relay is.",
    "failpoint": "A failpoint of the tests is armed.",
}


def event(name: str, **details: object) -> dict[str, Any]:
    """Return the ``extra`` argument of a logger call: the event's name and its details for programs.

    Details are texts, numbers, or None if there is nothing to report.
    """
    return {"event": name, "details": details}
