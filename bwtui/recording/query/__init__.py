"""The query language over changes, in Python and in SQL."""
