"""Actions on dead letters: retry their rows, or set them aside."""
