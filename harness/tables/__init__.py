"""Stored results and the paper's numbers as tables. Imports neither torch nor ray."""
