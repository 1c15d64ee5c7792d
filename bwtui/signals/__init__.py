"""Signals: handling them at once, and sending them to children when this process ends."""
