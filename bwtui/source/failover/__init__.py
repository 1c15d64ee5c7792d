"""Several servers of one cluster: the primary, and the standbys of which one may take over."""
