"""The engines of a replay: Spark's tasks, or this process for a small one."""
