"""A stand-in for CUDA graphs on the CPU: what was called is called again on the same tensors, without Python."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from raysed.train.out_of_memory import random_state
from raysed.train.recorded import map_tensors, tensors_in

_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}


class Tape(TorchDispatchMode):
    """Refuses what a GPU would have to be waited for, and tensors that no replay would change.

    Args:
        known: tensors that exist before: the batch, weights, moments.
    """

    def __init__(self, known: Iterable[torch.Tensor]):
        super().__init__()
        self.calls: list[tuple] = []
        self._known = {x.untyped_storage().data_ptr() for x in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            getattr(x, "dtype", None) == torch.bool for x in tree_leaves(args[1])
        )
        if name in _WAITS or by_mask:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor) and x.ndim and x.untyped_storage().data_ptr() not in self._known:
                raise RuntimeError(f"{name} reads a tensor that replays would not change")
        out = function(*args, **kwargs)
        self._known |= {x.untyped_storage().data_ptr() for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        self.calls.append((function, args, kwargs, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, out in self.calls:
            aliases = [result.alias_info for result in function._schema.returns]
            if aliases and all(alias is not None and not alias.is_write for alias in aliases):
                continue  # a view
            found = function(*args, **kwargs)
            if aliases and all(alias is not None for alias in aliases):
                continue  # in place
            for old, new in zip(tree_leaves(out), tree_leaves(found), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorder:
    """What engines take as `record`; counts the replays of each recording.

    Args:
        known: weights, buffers and moments.
        fault: what replays a tape instead; it gets the batch of the recording, and that of the replay.
    """

    def __init__(
        self, known: Callable[[], Iterable[torch.Tensor]], fault: Callable[[Tape, Any, Any], None] | None = None
    ):
        self._known, self._fault, self.replays = known, fault, []

    def __call__(self, function: Callable[[Any], Any], batch: Any) -> tuple[Callable[[], None], Any]:
        """Record; as with CUDA, nothing has happened then."""
        known, restore = list(self._known()), random_state(torch.device("cpu"))
        before = [x.detach().clone() for x in known]
        tape, number = Tape([*known, *tensors_in(batch)]), len(self.replays)
        with tape:
            result = function(batch)
        with torch.no_grad():
            for x, old in zip(known, before, strict=True):
                x.copy_(old)
        restore()
        self.replays.append(0)

        first = map_tensors(torch.clone, batch)

        def replay() -> None:
            self._fault(tape, first, batch) if self._fault else tape.replay()
            self.replays[number] += 1

        return replay, result
