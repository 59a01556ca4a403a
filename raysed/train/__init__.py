"""What changes weights, without Ray: the one loop, objectives, optimizers, fits."""
