"""The relay's end of a recording."""
