"""All that reads a recording: segments, changes, and what they say at one moment."""
