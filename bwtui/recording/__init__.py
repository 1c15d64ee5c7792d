"""Recordings: the rows that a relay read, its messages and their delivery reports, with checksums."""
