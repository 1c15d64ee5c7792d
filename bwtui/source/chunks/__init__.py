"""Reading chunks of tables alongside the stream."""
