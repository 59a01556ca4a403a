"""The papers' tables as runs of raysed, with both numbers side by side.

    published -> data -> plan -> run -> compare

Published numbers, runs and places of cells are data (`tables/`), so that a table can be checked against its paper
without reading code. Ours are read from report.json only.
"""
