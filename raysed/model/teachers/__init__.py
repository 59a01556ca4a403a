"""Kinds of teachers, one per file; `raysed.model.teacher` discovers them."""
