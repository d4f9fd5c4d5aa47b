"""What is said between jobs, producers and the coordinator, and how a stream of batches is named and made."""
