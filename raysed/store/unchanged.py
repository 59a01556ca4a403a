"""Whether a complete run is still that of its settings and inputs: told within a second, without Ray, torch and checks.

"Unchanged" is never wrong. Where anything differs, or an input is no local file, the checks decide.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from raysed.bundled import PREFIX
from raysed.config import PACKAGE, package_folder, sources, stable_hash
from raysed.errors import UserError
from raysed.recipe import parse_recipes
from raysed.store.files import sha256_of
from raysed.store.storage import Storage

if TYPE_CHECKING:
    from raysed.config import Config

FILE = "unchanged.json"
_PLOTS, _MODEL = "plots", "model"
"""Artefacts that depend on every setting and input of a run."""
_PACKAGE = Path(__file__).parents[1]
_MOST_BYTES = 2**30
"""Inputs beyond that are left to the checks, which know large files by their modification time."""


def fingerprint(config: Config) -> str | None:
    """Return a digest of the settings, the content of all files that they name, and this package's own files.

    Where runs lie and what they are given is left out, as in `Job.depends`. None where that does
    not say it all: an input is a URI, a glob or a hub id, or large.
    """
    kinds = {kind for recipe in parse_recipes(config.recipes) for kind in recipe.view_kinds(config)}
    if "synonym" in kinds:
        return None  # WordNet is no setting
    unused = {"mlm_model": "mlm" not in kinds, "pivots": "back_translation" not in kinds}
    try:
        named = [source for name, source in sources(config) if not unused.get(name)]
        return _fingerprint(config, [name for name in named if not name.startswith(PREFIX)])
    except (OSError, UserError):  # the checks say it better
        return None


def _fingerprint(config: Config, named: list[str]) -> str | None:
    named = [package_folder(name) if name.startswith(PACKAGE) else name for name in named]
    places = [Path(os.path.abspath(os.path.expanduser(name))) for name in named]
    if not all(place.exists() for place in places):
        return None
    files = [path for place in (*places, _PACKAGE) for path in _files(place)]
    if any(path.is_symlink() and path.is_dir() for path in files):  # what lies behind is not among the files
        return None
    if sum(path.stat().st_size for path in files) > _MOST_BYTES:
        return None
    settings = config.model_dump(mode="json", exclude={"storage", "run", "resources"})
    return stable_hash([settings, [str(place) for place in places], {str(p): sha256_of(p) for p in files}])


def results_of(storage: Storage) -> tuple[str, ...]:
    """Return the artefacts of a finished run that depend on every setting and input: plots, and the model if any."""
    return (_PLOTS,) if refusal(storage) else (_PLOTS, _MODEL)


def has_report(storage: Storage) -> bool:
    """Whether there is a report in all its forms, and it is that of a complete run."""
    is_complete = storage.read_json("report.json").get("status") == "complete"
    return is_complete and storage.has_files("report.md", "report.html")


def refusal(storage: Storage) -> str | None:
    """Return why a finished run has no model, in a sentence; None where it has one, or is not finished."""
    plots = storage.entry(_PLOTS)
    return plots.meta.get("refusal") if plots else None


def is_unchanged(digest: str | None, storage: Storage) -> bool:
    """Whether the run is complete and intact, and was made from what has this fingerprint; None matches nothing."""
    remembered = storage.read_json(FILE) if digest else {}
    if not remembered or remembered.get("fingerprint") != digest or not has_report(storage):
        return False
    known = remembered.get("results", {})
    entries = {name: storage.entry(name) for name in results_of(storage)}
    return all(e and known.get(n) == e.fingerprint and storage.finished(n, e.depends) for n, e in entries.items())


def remember(digest: str | None, storage: Storage) -> None:
    """Note what a complete run was made from: its fingerprint before the inputs were read; None is not noted."""
    entries = {name: storage.entry(name) for name in results_of(storage)}
    if digest is not None and all(entries.values()):
        results = {name: entry.fingerprint for name, entry in entries.items()}
        storage.write_text(FILE, json.dumps({"fingerprint": digest, "results": results}, indent=1))


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if (path.is_file() or path.is_symlink()) and "__pycache__" not in path.parts:
            yield path
