"""After a failover to a server that lacks sent changes: find the affected keys, and take them back."""
