"""Repair topics: pass the keys that differ from the tables to the running relay."""
