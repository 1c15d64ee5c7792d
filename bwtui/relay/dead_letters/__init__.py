"""What people do about dead letters: have their rows sent after all, or set them aside."""
