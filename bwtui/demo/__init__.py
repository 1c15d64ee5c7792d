"""The demo: a small shop that is written to while the relay runs, and an independent comparison."""
