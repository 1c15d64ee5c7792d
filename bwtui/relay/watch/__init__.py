"""Watching one's own relay: where its time goes, what it waits for, and the verdict in one sentence."""
