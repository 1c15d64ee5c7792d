"""Engines that run the tasks of an audit: Spark, or threads of this process for a small one."""
