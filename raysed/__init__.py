"""Sentence embeddings by ensemble distillation on Ray.

Python API: `raysed.run`, `raysed.distill`, `raysed.evaluate`; see `raysed.api`.
"""

from typing import TYPE_CHECKING, Any

from raysed._version import __version__

if TYPE_CHECKING:
    from raysed.api import Result, Scores, check, distill, evaluate, run

__all__ = ["Result", "Scores", "__version__", "check", "distill", "evaluate", "run"]


def __getattr__(name: str) -> Any:
    """Import on demand: a command shows its help without loading torch."""
    if name not in __all__:
        raise AttributeError(f"module 'raysed' has no attribute {name!r}")
    from raysed import api

    return getattr(api, name)
