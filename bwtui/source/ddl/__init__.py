"""A file of DDL statements: split, and tried in a transaction that is rolled back."""
