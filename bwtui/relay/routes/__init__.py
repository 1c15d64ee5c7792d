"""From a relation to its topic, schemas and encoder."""
