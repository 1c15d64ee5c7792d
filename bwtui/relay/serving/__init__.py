"""What a running relay answers: control socket, HTTP endpoints, systemd, and views of the services."""
