"""The screens over all relays of this user."""
