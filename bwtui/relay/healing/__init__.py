"""A slot that is lost is made anew, and topics get exactly the keys in which they differ from the tables."""
