"""Write the tables of docs/configuration.md from the docstrings of the settings; keep the text between them.

    python tools/settings_page.py        (or: make docs)

A table stands between `<!-- settings: BLOCK -->` and `<!-- /settings -->`. Without a name, it has the settings outside
of blocks. The settings of a block without a table are in the table of the block around it. A table of several blocks
has the settings that they share, and their own tables omit these.
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
_TABLE = re.compile(r"(<!-- settings(?:: ([^>]+))? -->\n).*?(<!-- /settings -->)", re.DOTALL)


class Setting(NamedTuple):
    """A row of a table; `block` is dotted, e.g. `evaluation.tasks.NAME`."""

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
    return default if isinstance(default, str) else json.dumps(default, default=lambda task: task.source)


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
    text = re.sub(r"docs/([\w-]+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", text.replace("|", r"\|"))
    return text.replace("SECURITY.md", "[security](../SECURITY.md)")


def fill(page: str) -> str:
    """Return the page with new tables.

    Raises:
        ValueError: a table names no block of settings.
    """
    tables: dict[str, list[list[Setting]]] = {match[2] or "": [] for match in _TABLE.finditer(page)}
    rest = settings()
    for blocks in (name.split() for name in tables):
        if len(blocks) > 1:
            names = set.intersection(*({s.name for s in rest if s.block == block} for block in blocks))
            shared = [s for s in rest if s.block in blocks and s.name in names]
            rest = [s for s in rest if s not in shared]
            tables[" ".join(blocks)] = _group_equal(shared)
    for setting in rest:
        block = setting.block
        while block and block not in tables:
            block = block.rpartition(".")[0]
        tables[block].append([setting])
    for name, rows in tables.items():
        if not rows:
            raise ValueError(f"docs/configuration.md has a table for {name!r}, which is no block of settings")
    return _TABLE.sub(lambda match: f"{match[1]}{_table(tables[match[2] or ''])}{match[3]}", page)


def _group_equal(shared: list[Setting]) -> list[list[Setting]]:
    """Group the settings of several blocks that share name, default and meaning."""
    groups: dict[tuple, list[Setting]] = {}
    names = list(dict.fromkeys(setting.name for setting in shared))
    for setting in sorted(shared, key=lambda setting: names.index(setting.name)):
        groups.setdefault(setting[1:], []).append(setting)
    return list(groups.values())


def _table(rows: list[list[Setting]]) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for row in rows:
        keys = ", ".join(f"`{setting.key}`" for setting in row)
        lines.append(f"| {keys} | {row[0].default} | {row[0].meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
