"""The run's own ensemble as a teacher."""

from collections.abc import Sequence

import numpy as np

from raysed.config import MEMBERS, Role
from raysed.errors import UserError
from raysed.model.pretrained import width_of
from raysed.model.teacher import Teacher


class Members(Teacher):
    """Mean of the members that another recipe of the run trains: `members`, or `members:RECIPE`.

    The run writes its vectors of the corpus as a target table; `embed` always raises.
    """

    is_made_by_run = True

    @classmethod
    def takes(cls, path: str) -> bool:
        return path.split(":")[0] == MEMBERS

    @property
    def identity(self) -> str:
        """The path; the members' artefacts identify the rest."""
        return self.config.path

    @property
    def width(self) -> int:
        return width_of(self.encoder)

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        raise UserError(f"teachers: {self.config.path!r} has vectors only for the corpus")
