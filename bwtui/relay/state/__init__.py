"""The state of a run, in memory: counters, acknowledgements, and the time spent on each activity."""
