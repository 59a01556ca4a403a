"""The run directory (artefacts, progress, status, metrics), and text formatting."""
