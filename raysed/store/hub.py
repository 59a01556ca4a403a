"""What this machine's cache of the hub holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache


def cached_commit(model: str, options: Mapping[str, Any]) -> str | None:
    """Return the commit of a model by the name of its folder; None where nothing of it is there.

    Args:
        options: of loading it: `cache_dir` and `revision` count, the others do not.
    """
    known = {key: value for key, value in options.items() if key in ("cache_dir", "revision")}
    found = try_to_load_from_cache(model, "config.json", **known)
    return Path(found).parent.name if isinstance(found, str) else None
