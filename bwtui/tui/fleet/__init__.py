"""All relays of this user, side by side."""
