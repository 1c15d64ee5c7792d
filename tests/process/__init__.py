"""Tests that start processes, open sockets or measure memory; they need no services."""
