"""Data that ships with the package: the emoji dataset and the script that builds it."""
