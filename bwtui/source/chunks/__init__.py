"""Reading chunks of tables beside the stream."""
