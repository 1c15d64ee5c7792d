"""Messages for the command line and the screens about sending missing messages late."""

#: The text if each key's newest message is among the missing ones, or nothing newer is there.
NONE_AGAIN = "no newer message of a key has to be sent again"


def mending(messages: int, late: int) -> str:
    """Return a warning before ``messages`` are sent, ``late`` of which come after newer ones."""
    if messages == 1:
        place = "1 missing message will be at the end of its partition"
        newer = "after newer ones of its key, whose newest is sent again"
    else:
        place = f"{messages:,} missing messages will be at the end of their partitions"
        newer = f"{late:,} of them after newer ones of their keys, whose newest is sent again"
    return f"{place}, {newer}" if late else f"{place}; {NONE_AGAIN}"


def foreseen(reported: int) -> str:
    """Return the warning about messages reported missing, before Kafka has been read."""
    if reported == 1:
        return (
            "1 message that was found missing would be at the end of its partition, "
            "after newer ones of its key if there are any"
        )
    return (
        f"{reported:,} messages that were found missing would be at the end of their partitions, "
        "after newer ones of their keys if there are any"
    )
