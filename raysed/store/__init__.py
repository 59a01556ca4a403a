"""The run directory, and what a run writes while it goes: artefacts, progress, status, metrics."""
