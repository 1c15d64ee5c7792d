"""The relay as a process: its lock, its log, its control socket, and how it ended."""
