"""A run's model in use: opened from its directory, evaluated, asked about pictures, taken away as a file."""
