"""Messages that don't belong to a table, for topics that options name."""
