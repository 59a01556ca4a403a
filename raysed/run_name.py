"""Name a distillation's run after its corpus, teachers and learner."""

import re
from collections.abc import Iterable
from hashlib import blake2b

from raysed.config import EncoderConfig, TeacherConfig

_MOST = 60


def run_name(sources: Iterable[str], teachers: Iterable[TeacherConfig], encoder: EncoderConfig) -> str:
    """Return `<corpus>-<teachers>-<learner>`, at most 60 characters; what the files contain has no say.

    A digest of the whole ends a name that is too long or has characters that a run's name may not have.

    Args:
        sources: of the corpus: paths, URIs or hub ids; empty for text that was passed as objects.

    >>> learner = EncoderConfig(path="org/large", keep_layers="half")
    >>> run_name(["mail/tickets.txt"], [TeacherConfig(path="org/large")], learner)
    'tickets-large-half'
    """
    titles = [teacher.title for teacher in teachers]
    learner, shape = TeacherConfig(path=encoder.path).title, _shape(encoder)
    own = [learner] if learner not in titles[:1] or not shape else []
    whole = "-".join([*([_end(source) for source in sources] or ["given"]), *titles, *own, *shape])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", whole).strip("-._")
    if name == whole and len(name) <= _MOST:
        return name
    digest = blake2b(whole.encode(), digest_size=4).hexdigest()
    return f"{name[: _MOST - 9].rstrip('-._')}-{digest}".lstrip("-")


def _end(source: str) -> str:
    """Return the last part of a path without wildcards, and without what follows a dot."""
    source = source.partition("?")[0] if "://" in source else source  # without options
    parts = [part for part in re.split(r"[/:]", source) if part and not set(part) & set("*?[")]
    return (parts or ["text"])[-1].split(".")[0] or "text"


def _shape(encoder: EncoderConfig) -> list[str]:
    """Return the words for a learner that has not all layers of its model."""
    shape = []
    if first := encoder.model_kwargs.get("num_hidden_layers"):
        shape.append(f"first-{first}")
    kept = encoder.keep_layers
    if isinstance(kept, list):
        shape.append(f"layers-{'-'.join(map(str, kept))}")
    elif kept:
        shape.append("half" if kept == "half" else f"{kept}-layer{'s' * (kept > 1)}")
    if encoder.static:
        shape.append(f"static-{encoder.static.width}" if encoder.static.width else "static")
    return shape
