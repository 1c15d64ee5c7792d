"""What the relay keeps between runs of a slot, and the gaps that it finds by it."""
