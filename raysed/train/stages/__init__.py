"""Stages that train, a file each, which `raysed.registry` finds. CONTRIBUTING.md shows how to add one."""
