"""Actions that only a running relay has: its services, and backfills of rows."""

from bwtui.tui.action import Action, looking

SERVICES = looking(
    "Screens",
    "live",
    Action(
        "show('slots')",
        ("6",),
        "Slots",
        "What keeps WAL: all slots of the server, long transactions, standbys",
        short="Slot",
        absent="A recording has no server whose slots could be asked: 'bwtui attach' shows a relay's",
    ),
    Action(
        "show('consumers')",
        ("7",),
        "Consumers",
        "Who reads the topics: consumer groups, and how far behind each of them is",
        short="Cons",
        absent="A recording does not know who reads the topics: 'bwtui attach' shows a relay's consumers",
    ),
    Action(
        "show('log')",
        ("8",),
        "Log",
        "Every SQL statement, registry and Kafka request of the relay, with its time and result",
        absent="A recording holds no log of what its relay asked: 'bwtui attach' shows a running relay's",
    ),
    Action(
        "show('settings')",
        ("9",),
        "Settings",
        "Every setting of the relay, and where it came from",
        short="Set",
        absent="A recording does not hold its relay's settings: 'bwtui config show' has those of here",
    ),
    Action("fleet", ("F",), "Relays", "All relays of this user: how each of them is, and Enter attaches"),
)

SENDING_AGAIN = looking(
    "Screens",
    "live",
    Action(
        "look_closer('backfills')",
        ("b",),
        "Sent again",
        "What is sent again: how far each request is, and why one failed",
        short="Again",
    ),
    Action(
        "snapshot_table",
        ("B",),
        "Send table",
        "Have all rows of the selected table sent again, after a question",
        changes="write into a topic",
    ),
    Action(
        "pause_sending",
        ("h",),
        "Hold",
        "Of what is sent again: pause the selected request, or go on with it",
        changes="pause what is being sent again",
    ),
    Action(
        "cancel_sending",
        ("X",),
        "Cancel",
        "Of what is sent again: end the selected request, after a question",
        changes="end what is being sent again",
    ),
)
