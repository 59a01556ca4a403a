"""Write the lists of docs/configuration.md from the docstrings of the settings; keep the text between them.

    python tools/settings_page.py        (or: make docs)

A list stands between `<!-- settings: BLOCK -->` and `<!-- /settings -->`. Without a name, it has the settings outside
of blocks. The settings of a block without a list are in the list of the block around it. A list of several blocks
has the settings that they share, and their own lists omit these.
"""

import ast
import json
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from raysed import config

PAGE = Path(__file__).resolve().parents[1] / "docs/configuration.md"
_LIST = re.compile(r"(<!-- settings(?:: ([^>]+))? -->\n).*?(<!-- /settings -->)", re.DOTALL)


class Setting(NamedTuple):
    """An entry of a list; `block` is dotted, e.g. `evaluation.tasks.NAME`."""

    block: str
    name: str
    default: str
    meaning: str

    @property
    def key(self) -> str:
        return f"{self.block}.{self.name}".lstrip(".")


def settings(model: type[BaseModel] = config.Config, block: str = "", seen: set[type] | None = None) -> list[Setting]:
    """Return all settings of a block in the order of the code; a class of blocks in lists or mappings counts once.

    Args:
        block: dotted name of `model`.
        seen: classes of blocks already met in lists or mappings.

    Raises:
        ValueError: a setting has no docstring.
    """
    found, seen = [], set() if seen is None else seen
    for name, field in model.model_fields.items():
        inner, ending = _block_in(field.annotation)
        if inner is None or not isinstance(field.default, BaseModel):
            default = "required" if field.is_required() else f"`{_format_default(field.default)}`"
            found.append(Setting(block, name, default, _meaning(model, name)))
        if inner and not (ending and inner in seen):
            seen |= {inner} if ending else set()
            found += settings(inner, f"{block}.{name}{ending}".lstrip("."), seen)
    return found


def _block_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the block that a setting is or holds, and a placeholder for the name or index of one of several."""
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    block = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
    return block, {dict: ".NAME", list: "[]"}.get(get_origin(annotation), "")


def _format_default(default: Any) -> str:
    return default if default and isinstance(default, str) else json.dumps(default, default=lambda task: task.source)


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the text below every setting of a module, by class and name. Python does not keep it."""
    found = {}
    for block in ast.parse(Path(sys.modules[module].__file__).read_text(encoding="utf-8")).body:
        inside = block.body if isinstance(block, ast.ClassDef) else []
        for field, text in pairwise(inside):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[block.name, field.target.id] = " ".join(text.value.value.split())
    return found


def _meaning(model: type[BaseModel], name: str) -> str:
    """Return the setting's own or inherited docstring, with names of pages as links."""
    kinds = [kind for kind in model.__mro__ if kind.__module__.startswith("raysed.")]
    text = next(filter(None, (_docstrings(kind.__module__).get((kind.__name__, name)) for kind in kinds)), None)
    if text is None:
        raise ValueError(f"{model.__name__}.{name} has no docstring; say below it what it means")
    text = re.sub(r"docs/([\w-]+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", text)
    return text.replace("SECURITY.md", "[security](../SECURITY.md)")


def fill(page: str) -> str:
    """Return the page with new lists.

    Raises:
        ValueError: a list names no block of settings.
    """
    lists: dict[str, list[list[Setting]]] = {match[2] or "": [] for match in _LIST.finditer(page)}
    rest = settings()
    for blocks in (name.split() for name in lists):
        if len(blocks) > 1:
            names = set.intersection(*({s.name for s in rest if s.block == block} for block in blocks))
            shared = [s for s in rest if s.block in blocks and s.name in names]
            rest = [s for s in rest if s not in shared]
            lists[" ".join(blocks)] = _group_equal(shared)
    for setting in rest:
        block = setting.block
        while block and block not in lists:
            block = block.rpartition(".")[0]
        lists[block].append([setting])
    for name, entries in lists.items():
        if not entries:
            raise ValueError(f"docs/configuration.md has a list for {name!r}, which is no block of settings")
    return _LIST.sub(lambda match: f"{match[1]}\n{_list(lists[match[2] or ''])}\n{match[3]}", page)


def _group_equal(shared: list[Setting]) -> list[list[Setting]]:
    """Group the settings of several blocks that share name, default and meaning."""
    groups: dict[tuple, list[Setting]] = {}
    names = list(dict.fromkeys(setting.name for setting in shared))
    for setting in sorted(shared, key=lambda setting: names.index(setting.name)):
        groups.setdefault(setting[1:], []).append(setting)
    return list(groups.values())


def _list(entries: list[list[Setting]]) -> str:
    lines = []
    for entry in entries:
        keys = ", ".join(f"`{setting.key}`" for setting in entry)
        lines.append(f"- {keys} ({entry[0].default}): {entry[0].meaning}\n")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
