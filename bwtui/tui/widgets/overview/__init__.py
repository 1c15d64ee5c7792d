"""Widgets that only the overview shows."""
