"""The relay's side of a recording: write what it reads and sends."""
