"""Products by oneDNN against torch's own, and who gets them."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from raysed.model import linear as linear_module
from raysed.model.linear import OneDnnLinear, by_onednn, linear, onednn_is_faster, speed_up

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch was built without oneDNN, which is then never used"
)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=3),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    bias=st.booleans(),
    layout=st.sampled_from(["plain", "transposed", "expanded"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_and_gradients_are_those_of_torch(shape, inputs, outputs, bias, layout, seed):
    torch.manual_seed(seed)
    x = torch.randn(*shape, inputs)
    if layout == "transposed" and shape:
        x = torch.randn(inputs, *shape).movedim(0, -1)
    elif layout == "expanded" and shape:
        x = torch.randn(*shape[:-1], 1, inputs).expand(*shape, inputs)
    layer = OneDnnLinear(inputs, outputs, bias)
    expected = nn.Linear(inputs, outputs, bias).double()
    expected.load_state_dict(layer.state_dict())
    weights = torch.randn(*shape, outputs)
    found, wanted = _with_gradients(layer, x, weights), _with_gradients(expected, x.double(), weights.double())
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


def _with_gradients(layer, x, weights):
    """Output, and all gradients of a weighted sum and of a plain sum, whose gradient is one number many times."""
    x = x.detach().requires_grad_()
    y = layer(x)
    leaves = [x, *layer.parameters()]
    return [
        y.detach(),
        *torch.autograd.grad((y * weights).sum(), leaves, retain_graph=True),
        *torch.autograd.grad(y.sum(), leaves),
    ]


def test_frozen_weights_and_inputs_without_gradient():
    layer, x = OneDnnLinear(3, 2), torch.randn(4, 3)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.tolist() == [4.0, 4.0]


def test_what_onednn_does_not_do_goes_the_usual_way(monkeypatch):
    def refuse(*_):
        raise RuntimeError("not for oneDNN")

    monkeypatch.setattr(torch.Tensor, "to_mkldnn", refuse)
    layer = OneDnnLinear(3, 2)
    with pytest.raises(RuntimeError, match="not for oneDNN"):
        layer(torch.randn(4, 3))
    assert layer(torch.randn(0, 3)).shape == (0, 2)
    assert copy.deepcopy(layer).double()(torch.randn(4, 3).double()).dtype == torch.float64
    assert copy.deepcopy(layer).bfloat16()(torch.randn(4, 3).bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(4, 3)).dtype == torch.bfloat16
        assert by_onednn(torch.randn(4, 3), layer.weight, None).dtype == torch.bfloat16
    assert layer.to("meta")(torch.randn(4, 3, device="meta")).shape == (4, 2)


def test_only_plain_linear_layers_are_changed(monkeypatch):
    class Special(nn.Linear):
        pass

    def model():
        return nn.Sequential(nn.Linear(3, 3), Special(3, 3), nn.ModuleList([nn.Linear(3, 2)]))

    monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: False)
    speed_up(same := model())
    assert [type(module) for module in same.modules() if isinstance(module, nn.Linear)] == [
        nn.Linear,
        Special,
        nn.Linear,
    ]
    monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: True)
    before = list(same.parameters())
    speed_up(same)
    assert [type(module) for module in same.modules() if isinstance(module, nn.Linear)] == [
        OneDnnLinear,
        Special,
        OneDnnLinear,
    ]
    assert all(one is other for one, other in zip(before, same.parameters(), strict=True))


@pytest.mark.parametrize("faster", [True, False])
def test_a_product_without_a_layer_is_onednns_only_where_that_is_faster(monkeypatch, faster):
    calls = []
    monkeypatch.setattr(linear_module, "onednn_is_faster", lambda: faster)
    monkeypatch.setattr(linear_module, "by_onednn", lambda *factors: calls.append(factors))
    linear(torch.randn(4, 3), torch.randn(2, 3), None)
    assert len(calls) == faster


@pytest.mark.parametrize(
    ("capability", "vendor", "mkl", "expected"),
    [
        ("AVX512", "AuthenticAMD", True, True),
        ("AVX2", "AuthenticAMD", True, False),
        ("AVX512", "GenuineIntel", True, False),
        ("AVX512", "", True, False),
        ("AVX512", "AuthenticAMD", False, False),
    ],
)
def test_the_choice_depends_on_the_kind_of_processor(monkeypatch, capability, vendor, mkl, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(linear_module, "_vendor", lambda: vendor)
    assert onednn_is_faster.__wrapped__() is expected


def test_batches_of_ever_new_sizes_do_not_fill_the_memory():
    """With oneDNN's own number of programs kept, each precision takes some 300 MB more."""
    script = """
import torch
from raysed.cluster.process import keep_few_programs
from raysed.model import linear
keep_few_programs()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
for dtype in (torch.float32, torch.bfloat16):
    layer, x = linear.OneDnnLinear(8, 8), torch.randn(700, 8, dtype=dtype)
    linear.speed_up(layer)
    layer.to(dtype)
    for rows in range(1, 200):
        layer(x[:rows])
    before = resident()
    for rows in range(200, 700):
        layer(x[:rows])
    print(resident() - before)
"""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("resident memory is read from /proc, which this system lacks")
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert max(map(float, done.stdout.split())) < 50
