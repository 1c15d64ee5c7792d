"""The relay: reads the stream, hands rows to the sink, and confirms what is durable."""
