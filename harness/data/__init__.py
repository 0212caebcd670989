"""Datasets: which images there are, how they are split, decoded, cached and made into batches."""
