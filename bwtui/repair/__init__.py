"""What differs between tables and topics, handed to the running relay key by key."""
