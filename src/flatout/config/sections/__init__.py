"""One file for each section of a recipe; schema.py puts them together."""
