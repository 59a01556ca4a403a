"""The run directory, what a run writes to it (artefacts, progress, status, metrics), and how text is formatted."""
