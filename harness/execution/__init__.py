"""From an experiment to its stored results: what runs, where it runs, and what is said meanwhile."""
