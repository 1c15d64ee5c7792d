"""Replay: send recorded messages again, on Spark, or in the command's process if there are few."""
