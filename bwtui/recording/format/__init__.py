"""What a segment's file holds: blocks, their payloads, and what may be in them."""
