"""Whether a complete run is still that of its settings and inputs: told within a second, without Ray, torch and checks.

At its end a run remembers what its settings and the files behind them were before they were read. Where all of that is
the same again there is nothing to do. Where anything differs, or where an input is no local file, the checks decide,
which know better what depends on what: so "perhaps not" may be wrong, but "unchanged" never is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Returns a digest of the settings, the content of all files that they name, and this package's own files.

    Where runs lie, what they are given and who is told of them is left out, as in `Job.depends`.

    Returns:
        None where that does not say it all: an input is a URI, a glob or a hub id, or large.
    """
    if "synonym" in {kind for recipe in parse_recipes(config.recipes) for kind in recipe.view_kinds(config)}:
        return None  # WordNet is no setting
    try:
        return _fingerprint(config, _sources(config))
    except (OSError, UserError):  # the checks say it better
        return None


def _fingerprint(config: Config, named: list[str]) -> str | None:
    named = [
        package_folder(name) if name.startswith(PACKAGE) else name for name in named if not name.startswith(PREFIX)
    ]
    places = [Path(os.path.abspath(os.path.expanduser(name))) for name in named]
    if not all(place.exists() for place in places):
        return None
    files = [path for place in (*places, _PACKAGE) for path in _files(place)]
    if any(path.is_symlink() and path.is_dir() for path in files):  # what lies behind is not among the files
        return None
    if sum(path.stat().st_size for path in files) > _MOST_BYTES:
        return None
    settings = config.model_dump(mode="json", exclude={"storage", "run", "resources", "tracking"})
    return stable_hash([settings, [str(place) for place in places], {str(p): sha256_of(p) for p in files}])


def results_of(storage: Storage) -> tuple[str, ...]:
    """Returns the artefacts of a finished run that depend on every setting and input: plots, and the model if any."""
    return (_PLOTS,) if refusal(storage) else (_PLOTS, _MODEL)


def has_report(storage: Storage) -> bool:
    """Whether there is a report in all its forms, and it is that of a complete run."""
    is_complete = _remembered(storage.read_text("report.json")).get("status") == "complete"
    return is_complete and storage.has_files("report.md", "report.html")


def refusal(storage: Storage) -> str | None:
    """Returns why a finished run has no model, in a sentence; None where it has one, or is not finished."""
    plots = storage.entry(_PLOTS)
    return plots.meta.get("refusal") if plots else None


def is_unchanged(print_: str | None, storage: Storage) -> bool:
    """Whether the run is complete and intact, and was made from what has this fingerprint.

    Args:
        print_: of `fingerprint`; None matches nothing.
    """
    if print_ is None or _remembered(storage.read_text(FILE)).get("fingerprint") != print_:
        return False
    if not has_report(storage):
        return False
    known = _remembered(storage.read_text(FILE)).get("results", {})
    entries = {name: storage.entry(name) for name in results_of(storage)}
    return all(e and known.get(n) == e.fingerprint and storage.finished(n, e.depends) for n, e in entries.items())


def remember(print_: str | None, storage: Storage) -> None:
    """Notes what a complete run was made from.

    Args:
        print_: of `fingerprint`, before the inputs were read; None is not noted.
    """
    entries = {name: storage.entry(name) for name in results_of(storage)}
    if print_ is not None and all(entries.values()):
        results = {name: entry.fingerprint for name, entry in entries.items()}
        storage.write_text(FILE, json.dumps({"fingerprint": print_, "results": results}, indent=1))


def _sources(config: Config) -> list[str]:
    """All settings that name text, pairs or models; those of stages that no recipe has are no harm."""
    kinds = {kind for recipe in parse_recipes(config.recipes) for kind in recipe.view_kinds(config)}
    unused = [] if "mlm" in kinds else ["views.mlm_model"]
    unused += [] if "back_translation" in kinds else ["views.pivots"]
    return [source for name, source in sources(config).items() if not name.startswith(tuple(unused))]


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if (path.is_file() or path.is_symlink()) and "__pycache__" not in path.parts:
            yield path


def _remembered(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
