"""The relay as a process, seen from outside: its lock, its log, its control socket, and how it ended."""
