"""What will be made from what: checks, and every artefact with its name, seed, start and dependencies."""
