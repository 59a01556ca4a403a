"""Planning: check a configuration, and derive every artefact with its name, seed, start and dependencies."""
