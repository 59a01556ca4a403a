"""Kinds of teachers, a file each; `raysed.model.teacher` finds them."""
