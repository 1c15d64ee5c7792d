"""Software from package registries, verified by known digests."""
