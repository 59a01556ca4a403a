"""Everyday English made by rule: the corpus and the graded pairs that come with the package are written by this."""
