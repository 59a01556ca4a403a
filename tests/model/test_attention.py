"""Attention keeps float32 where a forward pass on the CPU is in bf16."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from raysed.data.tokens import pack
from raysed.model.precision import full_precision_attention

CPU = torch.device("cpu")


def test_it_equals_attention_of_the_widened_inputs_and_so_do_the_gradients():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 7, 5, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    mask = torch.rand(2, 1, 7, 7) < 0.5
    mask |= torch.eye(7, dtype=torch.bool)
    weights = torch.randn(2, 3, 7, 5)
    with torch.autocast("cpu", torch.bfloat16), full_precision_attention(CPU):
        found = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=0.7)
    gradients = torch.autograd.grad((found * weights).sum(), inputs)

    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = (0.7 * wide[0] @ wide[1].mT).masked_fill(~mask, -torch.inf)
    expected = logits.softmax(-1) @ wide[2]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for gradient, plain in zip(gradients, torch.autograd.grad((expected * weights).sum(), wide), strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), plain, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("autocast", [False, True])
def test_only_attention_and_only_bf16_is_widened(autocast):
    x = torch.randn(1, 1, 4, 4)
    mask = torch.zeros(4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), full_precision_attention(CPU):
        assert F.scaled_dot_product_attention(x, x, value=x).dtype == torch.float32
        assert F.linear(x, x[0, 0]).dtype == (torch.bfloat16 if autocast else torch.float32)
        if autocast:
            assert F.scaled_dot_product_attention(x, x, x, attn_mask=mask).dtype == torch.float32
        else:
            assert F.scaled_dot_product_attention(*[x.bfloat16()] * 3).dtype == torch.bfloat16


@pytest.mark.parametrize(("packed", "parts"), [(True, 2), (False, 1)])
def test_an_encoder_in_bf16_attends_in_float32(make_encoder, make_table, packed, parts):
    """Also where its inner states are computed again for the gradient, and where it takes padded batches."""
    encoder = make_encoder("bert").eval()  # with dropout attention is not fused
    encoder.parts = parts
    if not packed:
        encoder.position_offset = None
    aten, seen = torch.ops.aten, []
    attention = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in attention:
                seen.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with Recorder():
        with torch.autocast("cpu", torch.bfloat16):
            embeddings = encoder(pack(make_table(9)))
        embeddings.sum().backward()
    assert len(seen) >= 4 and set(seen) == {torch.float32}
