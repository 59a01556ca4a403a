"""Training stages, one per file, found by `raysed.registry`. CONTRIBUTING.md shows how to add one."""
