"""Sharing in simulated time, decided by the code of the live service."""
