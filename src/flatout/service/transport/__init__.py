"""Connections to a service: the unix socket, gRPC, finding and starting it, and what it may open."""
