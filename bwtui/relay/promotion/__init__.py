"""What a relay does with a view to a promotion: before one, and when a former primary answers behind it."""
