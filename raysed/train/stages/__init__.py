"""The stages of a recipe that train, a file each: settings, batches, objective, optimizer, sizes and words.

They are found by `raysed.registry`; nothing lists them. CONTRIBUTING.md shows how to add one.
"""
