"""What every screen shares: actions and keys, plain text, figures, judgements and themes."""
