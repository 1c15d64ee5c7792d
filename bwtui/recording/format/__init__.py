"""The format of a segment's file: blocks, their payloads, and validation."""
