"""Prompts by role: text that a model expects before a query or a document.

Model files name them as sentence-transformers' `encode_query` and `encode_document` look them up.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from raysed.config import CorpusConfig, EncoderConfig, Role
from raysed.errors import UserError, first_line
from raysed.store.hub import model_directory
from raysed.store.progress import Progress

Prompts = Mapping[Role, str]
SETTINGS = "config_sentence_transformers.json"
_PART = 4096
_NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def prompts_of(directory: Path) -> dict[Role, str]:
    """Return the prompts in a model's files: both roles, or none if both are empty.

    The first nonempty name counts: sentence-transformers 5 and later write an empty `document` even beside a `passage`.
    """
    file = directory / SETTINGS
    named = read_settings(file).get("prompts", {})
    if not isinstance(named, dict) or not all(isinstance(prompt, str) for prompt in named.values()):
        raise UserError('prompts must be a mapping of names to texts, such as {"query": "query: "}', file=file)
    found = {role: next((named[name] for name in names if named.get(name)), "") for role, names in _NAMES.items()}
    return found if any(found.values()) else {}


def read_settings(file: Path) -> dict[str, Any]:
    """Return the settings in a model's JSON file; empty without the file."""
    try:
        return {**json.loads(file.read_text(encoding="utf-8"))} if file.is_file() else {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"it cannot be read as a JSON object: {first_line(error)}", file=file) from None


def learner_prompts(corpus: CorpusConfig, encoder: EncoderConfig) -> dict[Role, str]:
    """Return a learner's prompts, both or none: from settings, else from its original model; none without queries."""
    if corpus.queries is None:
        return {}
    given: dict[Role, str | None] = {"query": encoder.query_prompt, "document": encoder.document_prompt}
    found = {}
    if None in given.values():
        directory = model_directory(encoder.path, "encoder.path")
        if not (directory / SETTINGS).is_file() and (directory.parent / "modules.json").is_file():
            directory = directory.parent  # it is the transformer of a sentence-transformers model
        try:
            found = prompts_of(directory)
        except UserError as error:
            raise error.at("encoder.path") from None
    prompts = {role: found.get(role, "") if prompt is None else prompt for role, prompt in given.items()}
    return prompts if any(prompts.values()) else {}


def embed_by_role(
    embed: Callable[[list[str], Role], np.ndarray], texts: Sequence[str], roles: Sequence[Role]
) -> np.ndarray:
    """Embed role by role; return the rows [N, D] in the order of `texts`."""
    order = sorted(range(len(texts)), key=roles.__getitem__)
    parts = [embed([texts[row] for row in rows], role) for role, rows in groupby(order, key=roles.__getitem__)]
    return np.concatenate(parts)[np.argsort(order)]


def embed_in_parts(
    embed: Callable[[list[str], Role], np.ndarray], texts: Sequence[str], roles: Sequence[Role], title: str
) -> np.ndarray:
    """Call `embed_by_role` part by part and show the progress."""
    progress, parts = Progress(title, len(texts)), []
    for start in range(0, len(texts), _PART):
        some = slice(start, start + _PART)
        parts.append(embed_by_role(embed, texts[some], roles[some]))
        progress.update(start + len(parts[-1]))
    progress.close()
    return np.concatenate(parts)
