"""bf16 against fp32 on this CPU, for encoders of 3 and 22 million weights: what `precision: auto` rests on.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [TURNS]

Prints CPU seconds of one thread, the least of all turns, which alternate: to embed 100 sentences of 8 to 39 tokens (as
a teacher, with weights in bf16), and of a training step of 16 such sentences (in autocast).
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from transformers import BertConfig, BertModel

from raysed.config import EncoderConfig
from raysed.data.tokens import TokenTable, pack
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder


def small() -> Encoder:
    """Returns the bundled encoder."""
    return load_encoder(EncoderConfig(path="bundled:encoder"))[0]


def larger() -> Encoder:
    """Returns six layers in MiniLM's shape, with random weights."""
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return Encoder(BertModel(BertConfig(vocab_size=30522, **shape), add_pooling_layer=False))


def drawn(count: int) -> TokenTable:
    """Returns random sentences as token ids."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 40, size=count)
    return TokenTable.from_lists([rng.integers(5, 8000, size=length).tolist() for length in lengths])


def step(encoder: Encoder, batch: object, bf16: bool) -> None:
    """Computes the gradient of some loss."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = encoder(batch).float().square().mean()
    loss.backward()
    encoder.zero_grad()


def measure(name: str, fp32: Callable[[], object], bf16: Callable[[], object], turns: int) -> None:
    """Runs both in turns after a warm-up, and prints a line."""
    actions, seconds = (fp32, bf16), ([], [])
    for turn in range(turns + 1):
        for action, found in zip(actions, seconds):
            began = time.process_time()
            action()
            if turn:
                found.append(time.process_time() - began)
    gains = [slow / fast for slow, fast in zip(*seconds)]
    times = f"fp32 {min(seconds[0]):.3f} s, bf16 {min(seconds[1]):.3f} s"
    print(f"{name}: {times}, gain {statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})", flush=True)


def main() -> None:
    """Measures both encoders."""
    torch.set_num_threads(1)
    turns = int(sys.argv[1]) if sys.argv[1:] else 5
    table, batch = drawn(100), pack(drawn(16), row_tokens=128)
    for make in (small, larger):
        exact, rounded, trained = make().eval(), make().eval(), make().train()
        rounded.round_weights()
        name = f"{sum(weights.numel() for weights in exact.parameters()) / 1e6:.1f} million weights"
        measure(f"{name}, embed", partial(encode, exact, table), partial(encode, rounded, table), turns)
        steps = (partial(step, trained, batch, bf16) for bf16 in (False, True))
        measure(f"{name}, step", *steps, turns)


if __name__ == "__main__":
    main()
