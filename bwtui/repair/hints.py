"""Hints that several steps of a repair share."""

REPAIR_AGAIN = "run 'bwtui repair' again; it starts with a new comparison"
REPAIR_WHEN_FIXED = f"fix this, then {REPAIR_AGAIN}"
