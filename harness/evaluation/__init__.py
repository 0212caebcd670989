"""Recall@K, MAP@R and NMI of a set of embeddings, exact and in bounded memory."""
