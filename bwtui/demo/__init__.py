"""The demo: a small shop with writes while the relay runs, and a comparison at the end."""
