"""Widgets that show a recording."""
