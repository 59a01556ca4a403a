"""The state of a training as files, and what makes a continued training the undisturbed one."""

import json
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def seed_everything(seed: int, step: int) -> None:
    """Seed Python, numpy and torch from (seed, step)."""
    words = np.random.SeedSequence([seed, step]).generate_state(2, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[0]) % 2**32)  # noqa: NPY002  (objectives of others may use the global state)
    torch.manual_seed(int(words[1]) % 2**63)


def broadcast_from_rank0(value: float, device: torch.device) -> float:
    """Return the first worker's value to all workers of a training, so that all stop early or none does."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.broadcast(shared, 0)
    return shared.item()


class BackgroundWriter:
    """Write in a thread while training goes on, one state at a time; whatever happens, none is left half written."""

    def __init__(self) -> None:
        self._writing: Future | None = None

    def start(self, action: Callable[[], None]) -> None:
        """Start to write; nothing else may be being written."""
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing = thread.submit(action)
        thread.shutdown(wait=False)

    def wait(self, raises: bool = True) -> None:
        """Return when nothing is being written any more; raise what went wrong, if that is wanted."""
        writing, self._writing = self._writing, None
        error = writing and writing.exception()
        if error and raises:
            raise error


def copied(state: Mapping[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return a nested state as it is now: what JSON holds as text, and tensors on the CPU that share no memory."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_take_tensors(state, "", tensors))
    return text, {key: value.detach().to("cpu", copy=True).contiguous() for key, value in tensors.items()}


def write_state(text: str, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write what `copied` returned: tensors as safetensors, all else as JSON."""
    save_file(tensors, path / "state.safetensors")
    (path / "state.json").write_text(text)


def load_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; keys of mappings come back as text."""
    tensors = load_file(path / "state.safetensors")
    return _put_tensors(json.loads((path / "state.json").read_text()), tensors)


def _take_tensors(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = f"{len(tensors)}{name}"  # a key may hold a slash, so the path alone is not unique
        tensors[name] = value
        return {"__tensor__": name}
    if isinstance(value, Mapping):
        return {str(key): _take_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]
    return value


def _put_tensors(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if "__tensor__" in value:
            return tensors[value["__tensor__"]]
        return {key: _put_tensors(item, tensors) for key, item in value.items()}
    return [_put_tensors(item, tensors) for item in value] if isinstance(value, list) else value
