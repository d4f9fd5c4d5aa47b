"""Which batch is made when, by whom, and what the cache keeps: pure decisions (state.py), carried out by coordinator.py."""
