"""What stored results say: queries, statistics, budgets, and the paper's numbers. Imports neither torch nor ray."""
