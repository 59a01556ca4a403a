"""A Python object as a teacher: a function, or a loaded model with `encode`.

It cannot be written into a config or sent to another machine. Its path is a digest of its vectors for sample sentences,
so equal paths mean equal vectors as far as the sample shows.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from raysed import bundled
from raysed.config import PYTHON, Role, stable_hash
from raysed.errors import UserError
from raysed.model.teacher import Teacher

_SAMPLE = 32
given_objects: dict[str, Any] = {}
"""The run's objects by path, while it may need them."""


class PythonTeacher(Teacher):
    """An object that was passed to `raysed.distill` or `raysed.evaluate` instead of a path."""

    objects: Mapping[str, Any] = given_objects

    @classmethod
    def takes(cls, path: str) -> bool:
        return path.startswith(PYTHON)

    @property
    def identity(self) -> str:
        return stable_hash([self.config.path, self.config.prompt, self.prompts])

    @property
    def width(self) -> int:
        """Size of its vectors, which its path ends with."""
        return int(self.config.path.rpartition("-")[2])

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        """Return one vector per sentence, float32 [N, D]; raise UserError if the object returns anything else.

        Without a prompt in the settings, the object's `encode_query` or `encode_document` embeds their roles.
        """
        given = self.objects.get(self.config.path)
        if given is None:
            problem = f"{self.config.title} is an object of a Python process that has ended or released it"
            raise UserError(f"teachers: {problem}; pass it to raysed.distill again")
        has_prompt = self.config.prompt or role in self.prompts
        embed = None if has_prompt else _of_role(given, role)
        x_ND = _vectors(given, self._with_prompt(sentences, role), self.config.title, embed)
        if x_ND.shape[1] != self.width:
            problem = f"returned vectors of width {self.width} before, but now of width {x_ND.shape[1]}"
            raise UserError(f"teachers: {self.config.title} {problem}; the width must not change")
        return x_ND

    def check(self) -> None:
        super().check()
        self.embed(["A sentence."])


def settings_of(teacher: Any, objects: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a path, an object, or a mapping whose `path` is either; add objects to `objects`."""
    block = dict(teacher) if isinstance(teacher, Mapping) else {"path": teacher}
    given = block.get("path", "")
    if isinstance(given, str | os.PathLike):
        return {**block, "path": os.fspath(given)} if given else block
    name = block.get("name") or getattr(given, "__name__", type(given).__name__).strip("<>")
    return {**block, "path": _registered(given, name, objects), "name": name}


def _registered(given: Any, name: str, objects: MutableMapping[str, Any]) -> str:
    """Register an object under a digest of its vectors for bundled sentences and the long text they form.

    Vectors of queries and documents count if they differ from those of other texts. A second object with the same
    vectors gets another path, since the two may differ elsewhere.
    """
    if not (hasattr(given, "encode") or (callable(given) and not hasattr(given, "predict"))):  # of CrossEncoders
        problem = "is not a teacher; pass a path, a function that takes a list of sentences, or an object with encode"
        raise UserError(f"teachers: {name} {problem}")
    every = len(bundled.corpus()) // _SAMPLE
    sentences = bundled.corpus()[::every][:_SAMPLE]
    sentences.append(" ".join(sentences))
    x_ND = _vectors(given, sentences, name)
    digest = hashlib.sha256(x_ND.tobytes())
    for role in ("query", "document"):
        embed = _of_role(given, role)
        own_ND = x_ND if embed is None else _vectors(given, sentences, name, embed)
        if not np.array_equal(own_ND, x_ND):
            digest.update(role.encode() + own_ND.tobytes())
    while objects.setdefault(path := f"{PYTHON}{digest.hexdigest()[:16]}-{x_ND.shape[1]}", given) is not given:
        digest.update(b"another")
    return path


def _of_role(given: Any, role: Role) -> Callable | None:
    return getattr(given, f"encode_{role}", None) if role in ("query", "document") else None


def _vectors(given: Any, sentences: list[str], name: str, embed: Callable | None = None) -> np.ndarray:
    found = (embed or getattr(given, "encode", given))(sentences)
    if hasattr(found, "detach"):  # a torch tensor on any device, in any precision
        found = found.detach().float().cpu()
    try:
        x_ND = np.asarray(found, np.float32).copy()  # `found` may be a buffer that the next call fills
    except (TypeError, ValueError, RuntimeError):
        x_ND = np.float32(np.nan)
    if x_ND.ndim != 2 or len(x_ND) != len(sentences) or not x_ND.size:
        gave = " of shape ".join([type(found).__name__, *([str(list(x_ND.shape))] if x_ND.ndim else [])])
        problem = f"must return a vector of equal width for each of {len(sentences):,} sentences, but returned a {gave}"
        raise UserError(f"teachers: {name} {problem}")
    broken = np.flatnonzero(~np.isfinite(x_ND).all(1))
    if len(broken):
        raise UserError(f"teachers: {name} returned a vector for {sentences[broken[0]][:60]!r} that is not finite")
    return x_ND
