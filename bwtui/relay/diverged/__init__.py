"""A server that took over, and lacks some of what was sent: which keys that are, and taking them back."""
