"""Recordings: the rows a relay read, the messages it sent and their delivery reports, in checksummed files."""
