"""What runs the tasks of an audit: Spark, or, for a small one that would wait for Spark, threads of ours."""
