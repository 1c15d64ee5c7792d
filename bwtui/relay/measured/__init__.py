"""What is measured of one's own relay: latency, and the last ten minutes second by second."""
