"""What does the sending of a replay: Spark's tasks, or this process, where it is small."""
