"""The detail screens of a recording: its changes, its rows and its transactions."""
