"""Two pieces for Ray Data pipelines of your own: one model's embeddings, and the mean of several models'.

What they write as Parquet is a teacher of `raysed.distill`. See docs/ray.md.
"""

from raysed.make.targets import Embedder, MeanOfTeachers

__all__ = ["Embedder", "MeanOfTeachers"]
