"""Messages of the stream that are of no table: to topics that options name."""
