"""What commands share of their input: options, the settings of running relays, and what they compare."""
