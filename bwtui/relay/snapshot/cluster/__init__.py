"""Run the first snapshot's workers on the executors of a Spark cluster."""
