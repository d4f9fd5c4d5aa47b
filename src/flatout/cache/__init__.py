"""Stores of batches and samples: memory, disk, shared memory, Redis."""
