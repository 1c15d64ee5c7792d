"""What is said of missing messages that are sent late, by the command line and by the screens."""

#: Said where each key's newest message is among those that were missing, or nothing newer is there.
NONE_AGAIN = "no newer message of a key has to be sent again"


def mending(messages: int, late: int) -> str:
    """Return what has to be known before ``messages`` are sent, ``late`` of which come behind newer ones."""
    if messages == 1:
        stands = "1 missing message will stand at the end of its partition"
        newer = "behind newer ones of its key, whose newest is sent again"
    else:
        stands = f"{messages:,} missing messages will stand at the end of their partitions"
        newer = f"{late:,} of them behind newer ones of their keys, whose newest is sent again"
    return f"{stands}, {newer}" if late else f"{stands}; {NONE_AGAIN}"


def foreseen(reported: int) -> str:
    """Return what is known of messages that an audit found missing before anybody has looked at Kafka."""
    if reported == 1:
        return (
            "1 message that was found missing would stand at the end of its partition, "
            "behind newer ones of its key if there are any"
        )
    return (
        f"{reported:,} messages that were found missing would stand at the end of their partitions, "
        "behind newer ones of their keys if there are any"
    )
