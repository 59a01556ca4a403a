"""The five pieces that a run consists of on Ray, for Ray programs of your own: see docs/ray.md.

Each artefact that they leave is the one that `raysed run` with the same settings finds finished.
"""

from raysed.cluster.distilling import distill_loop
from raysed.cluster.programs import TargetSink, fit_flow, prepare_member
from raysed.cluster.tuning import train_member
from raysed.make.targets import Embedder, MeanOfTeachers

__all__ = [
    "Embedder",
    "MeanOfTeachers",
    "TargetSink",
    "distill_loop",
    "fit_flow",
    "prepare_member",
    "train_member",
]
