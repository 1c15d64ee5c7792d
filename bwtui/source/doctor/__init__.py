"""Advice of doctor that goes beyond a relay's prerequisites."""
