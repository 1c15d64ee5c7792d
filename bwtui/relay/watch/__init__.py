"""Watching the relay itself: where its time goes, what it is blocked on, and a one-sentence verdict."""
