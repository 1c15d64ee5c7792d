"""What doctor says beyond the preconditions of a relay."""
