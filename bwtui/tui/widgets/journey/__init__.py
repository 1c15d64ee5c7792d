"""Widgets that show a key's journey."""
