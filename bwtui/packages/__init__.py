"""Software out of package registries, checked against known digests."""
