"""Readers of a recording: segments, changes, and the state as of a position."""
