"""Running work: planning resources, starting and watching processes, making artefacts on Ray or in this process."""
