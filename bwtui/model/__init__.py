"""Values that all parts share: LSNs, a relay's status, record headers, deliveries, SQL quoting."""
