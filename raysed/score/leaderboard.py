"""MTEB tasks, scored by the mteb library itself, so that scores match the leaderboard's.

Source: Muennighoff et al., "MTEB: Massive Text Embedding Benchmark", 2023. Needs the extra `mteb`.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from raysed.errors import UserError, first_line, need


def load_mteb(names: Sequence[str]) -> list[Any]:
    """Load tasks by their leaderboard names; mteb fetches their data from the hub."""
    if not names:
        return []
    need("mteb", "--mteb", "mteb")
    import mteb  # takes seconds

    for library in ("mteb", "huggingface_hub"):  # the hub's client reports a missing network six times
        logging.getLogger(library).setLevel(logging.ERROR)
    found = []
    for name in names:
        try:
            (task,) = mteb.get_tasks(tasks=[name])
        except (KeyError, ValueError):
            raise UserError(f"--mteb {name}: the mteb library {mteb.__version__} has no such task") from None
        try:
            task.load_data()
        except Exception as error:  # the hub's libraries raise anything
            raise UserError(
                f"--mteb {name}: mteb cannot load its data from the Hugging Face hub: "
                f"{type(error).__name__}: {first_line(error)}"
            ) from None
        found.append(task)
    return found


def score_mteb(model: Any, tasks: Sequence[Any], name: str = "model") -> dict[str, float]:
    """Return main scores x100 by task of a `load_model` model; sentence-transformers ones keep their own prompts."""
    import mteb
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder

    class Encoder(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty({"name": f"raysed/{name.strip('/').replace('/', '_')}"})

        def __init__(self) -> None:
            pass

        def encode(self, inputs: Any, **about: Any) -> np.ndarray:
            role = getattr(about.get("prompt_type"), "value", "")
            return model.embed([text for batch in inputs for text in batch["text"]], role=role)[0]

    encoder = model.model if hasattr(model, "model") else Encoder()
    results = mteb.evaluate(encoder, tasks=list(tasks), cache=None, show_progress_bar=False)
    return {result.task_name: 100 * float(result.get_score()) for result in results.task_results}
