"""Signals: those that are heard, and those that end children with us."""
