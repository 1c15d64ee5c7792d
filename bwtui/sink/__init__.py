"""Where messages go. A sink takes messages (Accepted) and says later which of them are durable."""
