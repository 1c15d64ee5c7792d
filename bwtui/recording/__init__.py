"""Recordings: what a relay read, what it sent and what became of it, in files that check themselves."""
