"""Sentence embeddings by ensemble distillation on Ray."""

import gc

# Importing torch and transformers makes a million objects, hardly any of them garbage: to look for some after every 700
# takes a sixth of the start of every process, and a run starts several.
gc.set_threshold(20_000, *gc.get_threshold()[1:])
