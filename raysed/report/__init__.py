"""Scores as text and charts, and the choice of the exported model."""
