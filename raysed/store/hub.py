"""Locate models: in a directory, in a package, or on the hub and in its local cache. Imports no torch."""

import os
import re
from pathlib import Path
from typing import Any

from huggingface_hub import get_session, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

from raysed.bundled import ENCODERS, PREFIX
from raysed.config import PACKAGE, EncoderConfig, package_folder, stable_hash
from raysed.errors import UserError, first_line
from raysed.store.files import check_content, digest_of, files_of_model, visible

_PATIENCE_S = 60.0
"""Seconds, for each part of an answer."""
_OTHER_FORMATS = (".arrow", ".bin", ".data", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot")
"""Suffixes of unread files beside a transformer's safetensors."""
MODEL_FILES = frozenset(
    (".json", ".safetensors", ".txt", ".model", ".spm", ".codes", ".bpe", ".tiktoken", ".tokenizer", ".jinja")
)
"""Suffixes of settings, weights and vocabularies. Pickled weights are not downloaded; code is, if it is trusted."""
_OTHER_REPOSITORY = re.compile(r'"([\w.-]+/[\w.-]+)--[\w./-]+"')
"""A class in another repository of the hub, as in `auto_map` and modules.json."""


def limit_waits() -> None:
    """Have requests to the hub fail if no answer comes; most of its library's would wait forever."""
    hooks = get_session().event_hooks["request"]
    if _limit_wait not in hooks:
        hooks.append(_limit_wait)


def _limit_wait(request: Any) -> None:
    limits = request.extensions["timeout"]
    request.extensions["timeout"] = {kind: _PATIENCE_S if limit is None else limit for kind, limit in limits.items()}


def model_identity(config: EncoderConfig) -> dict[str, Any]:
    """Return the identity of weights: a digest of local files, or the commit on the hub."""
    path = Path(encoder_path(config))
    if not path.is_dir():
        options = {key: value for key, value in config.model_kwargs.items() if key in ("cache_dir", "revision")}
        found = try_to_load_from_cache(config.path, "config.json", **options)
        if not isinstance(found, str):
            return {"id": config.path, "commit": None}
        code = other_code(Path(found).parent, config.trust_remote_code)
        return {"id": config.path, "commit": Path(found).parent.name} | ({"code": stable_hash(code)} if code else {})
    files = [p for p in visible(path) if p.suffix in MODEL_FILES | {".py"}]
    digests = {file.name: digest_of(file) for file in files if file.is_file()}
    return {"files": stable_hash(digests | other_code(path, config.trust_remote_code))}


def other_code(directory: Path, trust_remote_code: bool) -> dict[str, str]:
    """Return digests of the code that a trusted model takes from other repositories; download it."""
    found: dict[str, str] = {}
    for settings in files_of_model(directory, ".json".__eq__) if trust_remote_code else ():
        is_named = re.search("config|modules", settings.name)
        for name in _OTHER_REPOSITORY.findall(settings.read_text("utf-8")) if is_named else ():
            folder = model_directory(name, f"code of {name}", True, only_code=True)
            found |= {f"{name}/{file.relative_to(folder)}": digest_of(file) for file in visible(folder, "**/*.py")}
    return found


def encoder_path(config: EncoderConfig) -> str:
    """Return a transformer's directory or hub id; early sentence-transformers used a subdirectory."""
    found = _located(config)
    outer = Path(os.path.expanduser(found))
    if not outer.exists():  # a hub's id
        limit_waits()
    check_content(outer, "encoder.path", _OTHER_FORMATS)
    has_own = [os.path.isfile(folder / "config.json") for folder in (outer, outer / "0_Transformer")]
    return str(outer / "0_Transformer") if has_own == [False, True] else found


def _located(config: EncoderConfig) -> str:
    if config.path.startswith(PACKAGE):
        return package_folder(config.path)
    if not config.path.startswith(PREFIX):
        return config.path
    directory = ENCODERS.get(config.path.removeprefix(PREFIX))
    if directory is None:
        known = " and ".join(PREFIX + name for name in ENCODERS)
        raise UserError(f"{config.path!r} is unknown; the bundled models are {known}", setting="encoder.path")
    return str(directory)


def model_directory(
    name: str, place: str | None = None, trust_remote_code: bool = False, only_code: bool = False
) -> Path:
    """Return the local directory of a model, downloading it if `name` is a hub id; errors name the setting `place`."""
    place = place or f"--models {name}"
    try:
        path = Path(_located(EncoderConfig(path=name))).expanduser()
        if path.is_dir():
            return path
        if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
            raise UserError("there is no such directory")
        limit_waits()
        patterns = [f"*{suffix}" for suffix in sorted(MODEL_FILES)] * (not only_code)
        return Path(snapshot_download(name, allow_patterns=patterns + ["*.py"] * trust_remote_code))
    except UserError as error:
        raise error.at(place) from None
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"neither a directory nor a hub id that can be reached: {hub_problem(error)}"
        raise UserError(problem, setting=place) from None


def hub_problem(error: Exception) -> str:
    """Return what the hub answered, without its status line, and what helps; or another error's first line."""
    answer = error if isinstance(error, HfHubHTTPError) else error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "Client Error" not in line]
    if not isinstance(answer, HfHubHTTPError) or not lines:
        return first_line(error)
    advice = "; ask for access on the model's page, then run `hf auth login` or set HF_TOKEN"
    return " ".join(lines).rstrip(".") + advice * isinstance(answer, GatedRepoError)
