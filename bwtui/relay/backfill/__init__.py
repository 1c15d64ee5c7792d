"""Rows of a table, or of a list of keys, put into the stream beside its changes."""
