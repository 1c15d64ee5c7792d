"""PostgreSQL through libpq itself: sessions, the stream, and which server it is."""
