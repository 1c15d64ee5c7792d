"""The first start of a relay: publication, slot, and a consistent copy of every table."""
