"""Real servers for tests and benchmarks: an S3 endpoint, and a proxy in front of it that misbehaves on request."""
