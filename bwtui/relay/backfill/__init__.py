"""Backfill rows of a table, or of a list of keys, into the stream alongside its changes."""
