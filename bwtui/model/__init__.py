"""What all parts speak of: LSNs, what a relay says of itself, record headers, deliveries, SQL's quoting."""
