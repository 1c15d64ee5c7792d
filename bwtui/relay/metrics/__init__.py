"""Measurements of the relay itself: latency, transactions, and the last ten minutes second by second."""
