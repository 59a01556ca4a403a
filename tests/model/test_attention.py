"""Attention in bf16 on a CPU is plain products, with and without gradients."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from raysed.data.tokens import pack
from raysed.model.precision import plain_attention

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", ["none", "chosen", "added"])
def test_it_equals_attention_in_double_precision_to_the_rounding_and_so_do_the_gradients(kind):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, 7, 5, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    chosen = (torch.rand(2, 1, 7, 7) < 0.5) | torch.eye(7, dtype=torch.bool)
    added = torch.zeros(chosen.shape).masked_fill(~chosen, torch.finfo(torch.float32).min)
    mask = {"none": None, "chosen": chosen, "added": added}[kind]
    weights = torch.randn(2, 3, 7, 5)
    with torch.autocast("cpu", torch.bfloat16), plain_attention(CPU):
        found = F.scaled_dot_product_attention(*inputs, attn_mask=mask, scale=0.7)
    gradients = torch.autograd.grad((found * weights).sum(), inputs)

    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    logits = 0.7 * wide[0] @ wide[1].mT
    if mask is not None:
        logits = logits.masked_fill(~chosen, -torch.inf)
    expected = logits.softmax(-1) @ wide[2]
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)
    for gradient, plain in zip(gradients, torch.autograd.grad((expected * weights).sum(), wide), strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.double(), plain, atol=4e-2, rtol=4e-2)


def test_what_it_does_not_compute_itself_is_left_to_torch():
    q, k, v = torch.randn(3, 1, 4, 6, 8, dtype=torch.bfloat16)
    for inputs, options in [((q, k, v), {"is_causal": True}), ((q, k[:, :2], v[:, :2]), {"enable_gqa": True})]:
        expected = F.scaled_dot_product_attention(*inputs, **options)
        with torch.autocast("cpu", torch.bfloat16), plain_attention(CPU):
            torch.testing.assert_close(F.scaled_dot_product_attention(*inputs, **options), expected, atol=0, rtol=0)


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 16, 8)
    with torch.autocast("cpu", torch.bfloat16), plain_attention(CPU):
        dropped = torch.stack([F.scaled_dot_product_attention(q, k, v, dropout_p=0.5) for _ in range(2000)])
        whole = F.scaled_dot_product_attention(q, k, v)
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.float().mean(0), whole.float(), atol=0.06, rtol=0)


@pytest.mark.parametrize(("packed", "parts"), [(True, 2), (False, 1)])
@pytest.mark.parametrize("bf16", [False, True])
def test_an_encoder_attends_by_products_in_bf16_and_by_the_fused_kernel_in_fp32(
    make_encoder, make_table, packed, parts, bf16
):
    """Also where its inner states are computed again for the gradient, and where it takes padded batches."""
    encoder = make_encoder("bert").eval()  # with dropout attention is not fused
    encoder.parts = parts
    if not packed:
        encoder.position_offset = None
    fused, products = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, torch.ops.aten.bmm
    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in (fused, products):
                seen.append((func.overloadpacket, args[0].dtype))
            return func(*args, **(kwargs or {}))

    with Recorder():
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            embeddings = encoder(pack(make_table(9)))
        embeddings.sum().backward()
    assert set(seen) == {(products, torch.bfloat16) if bf16 else (fused, torch.float32)}


def test_a_gpu_has_no_attention_by_cudnn(monkeypatch):
    """Which prepares each new shape of batch for a second, and may return NaN."""
    set_to: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", set_to.append)
    for device in (CPU, torch.device("cuda")):
        plain_attention(device)
    assert set_to == [False]
