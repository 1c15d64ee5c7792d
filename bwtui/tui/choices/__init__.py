"""The user's settings of the screens: read-only mode, keys and theme."""
