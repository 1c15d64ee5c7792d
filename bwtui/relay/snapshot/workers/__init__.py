"""The first snapshot by several processes, which read ranges of tables under one exported snapshot."""
