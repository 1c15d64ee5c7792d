"""Take the first snapshot with several processes, which read ranges of tables under one exported snapshot."""
