"""HTTP endpoints of a relay: metrics, and whether it is alive and ready."""
