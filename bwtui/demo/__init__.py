"""The demo: a small shop with writes while the relay runs, and an independent comparison."""
