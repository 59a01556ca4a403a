"""What changed between two sets of dependencies, in words."""

import json
import re
from collections.abc import Mapping
from typing import Any

_DIGEST = re.compile(r'"[0-9a-f]{16,}"')


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the leaves that differ: settings with both values, digests without.

    >>> changes({"config": {"seed": 1}, "corpus": "0123456789abcdef"}, {"config": {"seed": 2}, "corpus": None})
    ['seed was 1, is 2', 'corpus is gone']
    """
    found = []
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += changes(before, after, "" if prefix + key == "config" else f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} {_difference(before, after)}")
    return found


def in_words(found: list[str], most: int = 4) -> str:
    """Return the first few changes as one line."""
    more = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + more


def _difference(before: Any, after: Any) -> str:
    if _DIGEST.search(json.dumps([before, after])):
        return "is new" if before is None else "is gone" if after is None else "has changed"
    return f"was {_short(before)}, is {_short(after)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
