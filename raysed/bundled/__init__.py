"""Package data of the quickstart: an encoder, everyday sentences and graded pairs, without network."""

from pathlib import Path

from raysed.bundled.everyday import corpus, pairs

ENCODER = Path(__file__).parent / "encoder"
"""Directory of the bundled encoder, in Hugging Face layout."""
PREFIX = "bundled:"
"""How a setting names package data: `bundled:encoder`, `bundled:everyday`, `bundled:dev`."""

__all__ = ["ENCODER", "PREFIX", "corpus", "pairs"]
