"""What a journey is drawn of."""
