"""What the user has chosen of the screens: that they only look, keys, and colours."""
