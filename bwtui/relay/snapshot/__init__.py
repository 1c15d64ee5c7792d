"""How a relay begins: publication, slot, and a consistent copy of every table."""
