"""The state of a training as files, and the seeds that make a resumed training equal an uninterrupted one."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def seed_everything(seed: int, step: int) -> None:
    """Seed Python, numpy and torch from (seed, step)."""
    words = np.random.SeedSequence([seed, step]).generate_state(2, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[0]) % 2**32)  # noqa: NPY002  (third-party objectives may use the global state)
    seed_of_torch = int(words[1]) % 2**63
    torch.default_generator.manual_seed(seed_of_torch)  # `torch.manual_seed` takes ten times as long
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed_of_torch)


def broadcast_from_rank0(value: float, device: torch.device) -> float:
    """Return rank 0's value on all workers of a training: all must stop early or none."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.broadcast(shared, 0)
    return shared.item()


def snapshot(state: Mapping[str, Any]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return a snapshot of a nested state: JSON text, and tensors on the CPU that share no memory with it."""
    tensors: dict[str, torch.Tensor] = {}

    def store_tensor(value: Any) -> dict[str, str]:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a state holds tensors and JSON values, not {type(value).__name__}")
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"__tensor__": name}

    return json.dumps(state, default=store_tensor), tensors


def write_state(text: str, tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write what `snapshot` returned: tensors as safetensors, the rest as JSON."""
    save_file(tensors, path / "state.safetensors")
    (path / "state.json").write_text(text)


def load_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; keys of mappings become strings."""
    tensors = load_file(path / "state.safetensors")
    text = (path / "state.json").read_text()
    return json.loads(text, object_hook=lambda part: tensors[part["__tensor__"]] if "__tensor__" in part else part)
