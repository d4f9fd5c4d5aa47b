"""Which batch is made when, by whom, and what is kept: pure decisions (state.py), carried out by coordinator.py."""
