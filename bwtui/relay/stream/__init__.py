"""The session of the stream: from frames to rows, and to the confirmed LSN."""
