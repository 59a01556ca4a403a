"""Scores to words and pictures, and the choice of the exported model."""
