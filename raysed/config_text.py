"""Read settings from YAML files and overrides, and explain mistakes in one sentence."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from raysed.errors import UserError, first_line, public

SECRET = "secret"
"""Kind of error whose message must not repeat the value."""
_LONGEST_TEXT, _MOST_VALUES, _DEEPEST = 200_000, 100_000, 30
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBERS = [
    (_INT, re.compile(r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")),
    (_FLOAT, re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")),
    (_FLOAT, re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")),
]
_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers | dict.fromkeys("-+.0123456789", _NUMBERS)
"""Numbers of YAML 1.2. PyYAML has those of YAML 1.1, for which 010 is 8 and 1:30 is 90, and dates."""
BASED_ON = "based_on"
"""Key that names another config file, whose settings this file overrides."""


def read_settings(path: Path, model: type[BaseModel], named: Path) -> dict[str, Any]:
    """Read a YAML file over the one that it is based on, which is in the same directory or in `named`; see `merge`."""
    settings = _read_yaml(path)
    if BASED_ON not in settings:
        return settings
    name, problem = settings.pop(BASED_ON), ""
    places = {place.stem: place for folder in (named, path.parent) for place in folder.glob("[!.]*.yaml")}
    base = places.get(str(name))
    below = _read_yaml(base) if base else {}
    if base is None:
        problem = f"{name!r}, which is not a config; the configs are {', '.join(sorted(places))}"
    elif base.samefile(path):
        problem = "the file itself; name another config"
    elif BASED_ON in below:
        problem = f"{name!r}, which is itself based on {below[BASED_ON]!r}; name a config without {BASED_ON}"
    if problem:
        raise UserError(f"config file {path}: {BASED_ON} names {problem}")
    return merge(below, settings, model)


def merge(below: Mapping[str, Any], above: Mapping[str, Any], block: Any) -> dict[str, Any]:
    """Return `below` with the settings of `above`, block by block; `block` is the model of both.

    A setting of `above` replaces that of `below`, even if it is a list or a mapping.
    """
    merged = dict(below)
    for key, value in above.items():
        inner = _block_at(block, [key])
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = merge(below[key], value, inner) if both and _fields(inner) else value
    return merged


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            data = _parse(file.read(_LONGEST_TEXT + 1))
    except OSError as error:
        raise UserError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"config file {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"config file {path}{where} is not valid YAML: {problem}") from None
    if not isinstance(data, dict | None):
        raise UserError(f"config file {path} must hold settings as 'key: value', not a {type(data).__name__}")
    return data or {}


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, and text so deep or repetitive that reading it would never end."""

    yaml_implicit_resolvers = _RESOLVERS

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        # Values and levels by node. An alias counts as its whole content.
        self._sizes: dict[yaml.Node, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and node not in self._sizes:
            raise yaml.YAMLError("one of its aliases contains itself")
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        values, levels = zip((0, 0), *(self._sizes[part] for part in parts))
        self._sizes[node] = 1 + sum(values), 1 + max(levels)
        if sum(values) >= _MOST_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {_MOST_VALUES:,} values")
        if self._depth + 1 + max(levels) > _DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
        return node

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        """Refuse a repeated key; YAML would silently use the last one."""
        node, known = super().compose_mapping_node(anchor), set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in known:
                raise yaml.MarkedYAMLError(problem=f"{_short(key.value)} is given twice", problem_mark=key.start_mark)
            known.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Puts text that `_Loader` would read as a number in quotation marks."""

    yaml_implicit_resolvers = _RESOLVERS


_Loader.add_constructor(_INT, lambda _, node: int(node.value, 0 if node.value[:2] in ("0o", "0x") else 10))


def dump(data: Any) -> str:
    """Return settings as YAML that `read_settings` reads back."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


def _parse(text: str) -> Any:
    if len(text) > _LONGEST_TEXT:
        raise yaml.YAMLError(f"it has more than {_LONGEST_TEXT:,} characters")
    try:
        return _Loader(text).get_single_data()
    except (ValueError, LookupError, AttributeError) as error:  # a value that does not match its tag
        raise yaml.YAMLError(first_line(error)) from None


def apply_override(data: dict[str, Any], item: str) -> None:
    """Change one setting in place, given as `block.key=value` with the value in YAML."""
    key, equals, text = item.partition("=")
    if not equals or not all(key.split(".")) or key.count(".") > _DEEPEST:
        raise UserError(f"--set {_short(item)}: write it as block.key=value, for example --set ct.steps=1000")
    try:
        value = _parse(text)
    except yaml.YAMLError:
        raise UserError(f"--set {_short(item)}: the value is not valid YAML") from None
    *parents, leaf = key.split(".")
    for depth, parent in enumerate(parents):
        data[parent] = {} if data.get(parent) is None else data[parent]  # a block may hold only comments
        if parents[:depth] == ["evaluation", "tasks"] and isinstance(data[parent], str):
            data[parent] = {"source": data[parent]}  # a task may be only a path
        data = data[parent]
        if not isinstance(data, dict):
            raise UserError(f"--set {item!r}: {parent} is a value, not a block of settings")
    data[leaf] = value


def explain(error: ValidationError, data: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return one sentence about the first wrong setting, misspelt ones first."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    keys = _keys(problems[0], data)
    where, kind, value = ".".join(map(str, keys)), problems[0]["type"], problems[0]["input"]
    messages = [problem["msg"] for problem in problems if _keys(problem, data) == keys]
    if kind == "extra_forbidden":
        return f"unknown setting {where}{_suggestion(keys, model)}"
    if kind == "model_type":
        inside = (f"{where}.{name}" for name in _fields(_block_at(model, keys)))
        return f"{where} is a block of settings: {', '.join(inside)}"
    if kind == "value_error":
        messages = [str(problems[0]["ctx"]["error"])]
        if isinstance(value, BaseModel | Mapping):  # names the settings itself
            return messages[0]
    if kind == "string_pattern_mismatch":
        messages = ["use only letters, digits, '.', '_' and '-', starting with a letter or a digit"]
    text = ", or ".join(dict.fromkeys(message[0].lower() + message[1:] for message in messages))
    return f"setting {where}: {text}{'' if kind in ('missing', SECRET) else f' (got {_short(value)})'}"


def _keys(problem: Any, data: Any) -> list[Any]:
    """Return the path to the setting, without pydantic's additions such as the branch of a union."""
    keys = []
    for part in problem["loc"]:
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, list | tuple) and part in range(len(data)):
            data = data[part]
        elif isinstance(data, Mapping) and part == 0:  # a block in place of a list of one
            pass
        elif problem["type"] != "missing":
            break
        keys.append(part)
    return keys


def _short(value: Any) -> str:
    text = public(repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields(block: Any) -> list[str]:
    return list(getattr(block, "model_fields", {}))


def _block_at(block: Any, keys: list[Any]) -> Any:
    """Follow keys from a block; return the type there, a block or something else."""
    for key in keys:
        if key in _fields(block):
            block = block.model_fields[key].annotation
            blocks = [kind for kind in get_args(block) if _fields(kind)]
            block = blocks[0] if blocks and get_origin(block) not in (dict, list) else block
        else:  # the blocks of a list or mapping are its last type argument
            block = get_args(block)[-1] if get_origin(block) in (dict, list) else None
    return block


def _suggestion(keys: list[Any], model: type[BaseModel]) -> str:
    known = _fields(_block_at(model, keys[:-1]))
    prefix = "".join(f"{key}." for key in keys[:-1])
    if close := difflib.get_close_matches(str(keys[-1]), known, n=1):
        return f": did you mean {prefix}{close[0]}?"
    return f"; the settings here are {', '.join(prefix + name for name in known)}"
