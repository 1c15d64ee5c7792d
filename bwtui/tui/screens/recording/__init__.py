"""What looks closer at a recording: its changes, its rows, and what became of one of them."""
