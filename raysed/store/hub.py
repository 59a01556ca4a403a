"""Locate models: in a directory, in a package, or on the hub and in its local cache. Imports no torch."""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache

from raysed.bundled import ENCODERS, PREFIX
from raysed.config import PACKAGE, EncoderConfig, package_folder, stable_hash
from raysed.errors import UserError, first_line
from raysed.store.files import check_content, digest_of, visible

_OTHER_FORMATS = (".arrow", ".bin", ".data", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot")
"""Suffixes of unread files beside a transformer's safetensors."""
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""Files to download of a hub model: no pickled weights, and code only if it is trusted."""


def model_identity(config: EncoderConfig) -> dict[str, Any]:
    """Return the identity of weights: a digest of local files, or the commit on the hub."""
    path = Path(encoder_path(config))
    if not path.is_dir():
        options = {key: value for key, value in config.model_kwargs.items() if key in ("cache_dir", "revision")}
        found = try_to_load_from_cache(config.path, "config.json", **options)
        return {"id": config.path, "commit": Path(found).parent.name if isinstance(found, str) else None}
    files = [p for p in visible(path) if p.suffix in (".json", ".safetensors", ".txt", ".model", ".py", ".spm")]
    return {"files": stable_hash({file.name: digest_of(file) for file in files if file.is_file()})}


def encoder_path(config: EncoderConfig) -> str:
    """Return a transformer's directory or hub id; early sentence-transformers used a subdirectory."""
    found = _located(config)
    outer = Path(os.path.expanduser(found))
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


def model_directory(name: str, place: str | None = None, trust_remote_code: bool = False) -> Path:
    """Return the local directory of a model, downloading it if `name` is a hub id; errors name the setting `place`."""
    place = place or f"--models {name}"
    try:
        path = Path(_located(EncoderConfig(path=name))).expanduser()
        if path.is_dir():
            return path
        if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
            raise UserError("there is no such directory")
        return Path(snapshot_download(name, allow_patterns=[*_FILES, "*.py"] if trust_remote_code else _FILES))
    except UserError as error:
        raise error.at(place) from None
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"neither a directory nor a hub id that can be reached: {first_line(error)}"
        raise UserError(problem, setting=place) from None
