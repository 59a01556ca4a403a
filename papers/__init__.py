"""The papers' tables as runs of raysed, with both numbers side by side.

    published -> data -> plan -> run -> compare

Published numbers, runs and places of cells are data (`tables/`), which readers can check against the papers without
reading code. Our numbers come only from the runs' reports and the measurements kept with them.
"""
