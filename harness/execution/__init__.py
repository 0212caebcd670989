"""From an experiment to its stored results: what runs, where it runs, and how progress is reported."""
