"""What others scrape of a relay: metrics, and whether it lives and is ready."""
