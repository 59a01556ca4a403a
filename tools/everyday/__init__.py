"""Everyday English made by rule: writes the package's corpus and graded pairs."""
