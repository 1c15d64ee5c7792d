"""What only the overview shows."""
