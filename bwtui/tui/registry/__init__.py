"""What the screens know of the schema registry, without widgets."""
