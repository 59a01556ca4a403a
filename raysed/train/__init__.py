"""Training without Ray: the loop, objectives, optimizers and fits."""
