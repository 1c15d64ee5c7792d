"""PostgreSQL through libpq directly: sessions, the stream, and the identity of the server."""
