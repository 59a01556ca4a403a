"""Which model is best on my own pairs? Any models, side by side.

python examples/compare_models.py bundled:raw bundled:encoder
"""

import sys

import raysed
from raysed import bundled

splits = {name: [(first, second, score) for score, first, second in bundled.pairs(name)] for name in ("dev", "test")}

print(raysed.evaluate(sys.argv[1:] or ["bundled:raw", "bundled:encoder"], splits))
