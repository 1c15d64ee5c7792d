"""Widgets over a recording."""
