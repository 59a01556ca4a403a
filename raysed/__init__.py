"""Sentence embeddings by ensemble distillation on Ray."""
