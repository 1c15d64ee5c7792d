"""Messages for the command line and the screens about sending missing messages late."""

#: The text if each key's newest message is among the missing ones, or nothing newer is there.
NONE_AGAIN = "no newer message has to be sent again"


def late_warning(messages: int, late: int) -> str:
    """Return a warning before ``messages`` are sent, ``late`` of which come after newer ones."""
    if messages == 1:
        place = "1 missing message will be appended to its partition"
        newer = "after newer ones of its key, the newest of which is sent again"
    else:
        place = f"{messages:,} missing messages will be appended to their partitions"
        newer = f"{late:,} of them after newer ones of their keys, the newest of which are sent again"
    return f"{place}, {newer}" if late else f"{place}; {NONE_AGAIN}"


def late_warning_ahead(reported: int) -> str:
    """Return the warning about messages reported missing, before Kafka has been read."""
    if reported == 1:
        return "1 reported message would be appended to its partition, after any newer messages of its key"
    return (
        f"{reported:,} reported messages would be appended to their partitions, "
        "after any newer messages of their keys"
    )
