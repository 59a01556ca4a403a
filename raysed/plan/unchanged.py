"""What a run is made from, told within a second, without torch and checks: a complete run of the same is unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from raysed.bundled import PREFIX
from raysed.config import PACKAGE, package_folder, sources, stable_hash
from raysed.errors import UserError
from raysed.plan.needs import view_kinds
from raysed.recipe import parse_recipes
from raysed.store.files import sha256_of
from raysed.store.status import is_complete

if TYPE_CHECKING:
    from raysed.config import Config
    from raysed.store.storage import Storage

_PACKAGE = Path(__file__).parents[1]
_MOST_BYTES = 2**30
"""Inputs beyond that are left to the checks, which know large files by their modification time."""


def fingerprint(config: Config) -> str | None:
    """Return a digest of the settings, the content of all files that they name, and this package's own files.

    Where runs lie and what they are given is left out, as in `Job.depends`. None where that does not say it all: an
    input is a URI, a glob or a hub id, or large. The checks decide then.
    """
    kinds = {kind for recipe in parse_recipes(config.recipes) for kind in view_kinds(recipe, config)}
    if "synonym" in kinds:
        return None  # WordNet is no setting
    unused = {"mlm_model": "mlm" not in kinds, "pivots": "back_translation" not in kinds}
    named = [name for setting, name in sources(config) if not (unused.get(setting) or name.startswith(PREFIX))]
    try:
        folders = [package_folder(name) if name.startswith(PACKAGE) else name for name in named]
        places = [Path(os.path.abspath(os.path.expanduser(name))) for name in folders]
        found = [path for place in (*places, _PACKAGE) for path in (place, *sorted(place.rglob("*")))]
        files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
        # What lies behind a link to a directory is not among the files.
        if not all(place.exists() for place in places) or any(p.is_symlink() and p.is_dir() for p in found):
            return None
        if sum(path.stat().st_size for path in files) > _MOST_BYTES:
            return None
        settings = config.model_dump(mode="json", exclude={"storage", "run", "resources"})
        return stable_hash([settings, list(map(str, places)), {str(path): sha256_of(path) for path in files}])
    except (OSError, UserError):  # the checks say it better
        return None


def is_unchanged(made_from: str | None, storage: Storage) -> bool:
    """Whether the run is complete and intact, and was made from what has this fingerprint; None matches nothing."""
    plots = storage.entry("plots")
    is_same = plots is not None and made_from is not None and plots.meta.get("made_from") == made_from
    return is_same and is_complete(storage, plots.depends)
