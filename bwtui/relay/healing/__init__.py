"""Recreate a lost slot, and re-send exactly the keys in which topics differ from the tables."""
