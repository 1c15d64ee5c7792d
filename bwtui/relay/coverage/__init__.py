"""Coverage: whether topics are proven to equal their tables, and what happens when the facts change."""
