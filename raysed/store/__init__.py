"""The run directory, what a run writes while it goes (artefacts, progress, status, metrics), and how text looks."""
