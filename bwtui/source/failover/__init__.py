"""Several servers of one cluster: the primary, and the standbys that may be promoted."""
