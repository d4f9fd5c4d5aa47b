"""Batches prepared once and shared by several jobs, on one machine or many."""
