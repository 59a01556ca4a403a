"""Embeddings to scores."""
