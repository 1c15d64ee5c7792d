"""Whether topics are proven to equal their tables: what that rests on, and what happens when it changes."""
