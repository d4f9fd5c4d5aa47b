"""The dashboard: a local page over run directories. Needs the extra `web`."""
