"""Stored results, embeddings and images as the paper's figures."""
