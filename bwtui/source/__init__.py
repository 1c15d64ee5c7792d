"""Everything that talks to PostgreSQL: connections, catalog, publication, slot, snapshot and stream."""
