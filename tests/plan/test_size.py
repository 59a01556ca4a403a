"""What a run needs: every count of the plan against what is really trained, kept and written."""

import re
from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, BertConfig, BertModel

from raysed.config import Config, find_config, load_config, make_config
from raysed.data.pairs import PairRows
from raysed.data.tokens import TokenTable, pack
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_encoder
from raysed.model.shape import Shape, shape_of, shape_of_model
from raysed.pipeline import ensemble_then_distill, plan_text
from raysed.plan.check import Job
from raysed.plan.size import largest_need, need_of, plan_run, rehearsed
from raysed.recipe import parse_recipes
from raysed.registry import stages
from raysed.resources import Cluster, Need
from raysed.score.tasks import Evaluation
from raysed.train.memory import checkpoint_bytes, saved_per_token, training_need

BASE = shape_of_model(BertConfig())
LARGE = shape_of_model(
    BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
)
GB = 1e9
HERE = Cluster(((4.0, 0.0),), node_bytes=16 * GB)


# -- sizes of encoders -----------------------------------------------------------------------------------------------


def test_the_shape_of_the_bundled_encoder_is_that_of_its_weights():
    encoder, _ = load_encoder(Config().encoder)
    shape = shape_of(Config().encoder)
    weights = {name: p for name, p in encoder.transformer.named_parameters() if "pooler" not in name}
    assert shape.parameters == sum(p.numel() for p in weights.values())
    assert (shape.width, shape.layers) == (encoder.width, encoder.transformer.config.num_hidden_layers)
    linear = [
        m.weight.numel() for n, m in encoder.named_modules() if isinstance(m, torch.nn.Linear) and "pooler" not in n
    ]
    assert shape.products == sum(linear)


def test_shapes_follow_the_settings():
    whole = shape_of(Config().encoder)
    for encoder, layers in (({"keep_layers": [0, 2]}, 2), ({"model_kwargs": {"num_hidden_layers": 1}}, 1)):
        shape = shape_of(make_config({"encoder": {"pool_layers": 1, **encoder}}).encoder)
        assert shape.layers == layers and shape.products == whole.products * layers / whole.layers
    for static, width in (({}, whole.width), ({"width": 16}, 16)):
        shape = shape_of(make_config({"encoder": {"pool_layers": 1, "static": static}}).encoder)
        assert shape.layers == 0 and shape.parameters == shape.vocabulary * width


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_shapes_are_those_of_the_architectures(kind):
    config = AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    shape = shape_of_model(config)
    assert shape.parameters == sum(p.numel() for n, p in model.named_parameters() if "pooler" not in n)
    assert (shape.width, shape.inner) == (768, 3072) and shape.layers == config.num_hidden_layers


# -- memory ----------------------------------------------------------------------------------------------------------


def kept_for_gradients(config: BertConfig, *, bf16: bool) -> float:
    """Bytes per token that torch keeps of a forward pass, without weights."""
    encoder = Encoder(BertModel(config)).eval()
    weights = {p.untyped_storage().data_ptr() for p in encoder.parameters()}
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage, storage.nbytes()
        return tensor

    ids = np.random.default_rng(0).integers(5, config.vocab_size, 32 * 24).astype(np.int32)
    tokens = pack(TokenTable(np.arange(32), ids, np.arange(33) * 24))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            result = encoder(tokens)
        del result
    return sum(size for _, size in kept.values()) / tokens.input_ids.numel()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("width", "inner", "layers"), [(64, 256, 2), (192, 768, 4)])
def test_an_update_keeps_what_the_plan_says(width, inner, layers, bf16):
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = BertConfig(vocab_size=500, **sizes)
    planned = saved_per_token(shape_of_model(config), bf16=bf16, dropout=False)
    assert planned == pytest.approx(kept_for_gradients(config, bf16=bf16), rel=0.15)


def test_a_member_of_bert_large_under_ct_needs_what_it_takes():
    """Two copies with gradients and two moments each, in fp32: 16 bytes for every parameter of both."""
    memories = {name: partial(need_of, name, Config(), LARGE) for name in ("nli", "ct", "sts")}
    models = [SimpleNamespace(how=SimpleNamespace(node=name, memory=memory)) for name, memory in memories.items()]
    need = largest_need(models, gpu=True, kind="")
    assert 2 * 16 * LARGE.parameters < need.least <= need.device < 20 * GB
    assert need.what == "a member of ct" and need.host > 2 * 12 * LARGE.parameters
    assert largest_need([], gpu=True, kind="") == Need()


def test_a_gpu_also_holds_recorded_updates(monkeypatch):
    """The gradients of a small batch for a second time, or what a large batch needs besides them."""

    def need(stage: str, records: bool = True, **settings) -> Need:
        config = make_config({"members": {"recorded": records}, "sed": {"recorded": records, **settings}})
        return need_of(stage, config, BASE, gpu=True)

    launched, recorded = need("contrastive", False), need("contrastive")
    options = stages()["contrastive"], Config().contrastive, BASE, 0
    empty, small = (training_need(*options, gpu=True, bf16=True, records=records) for records in (False, True))
    assert small.device - empty.device == pytest.approx(1.1 * 4 * BASE.parameters)
    batch = launched.device - empty.device + 1.1 * 2 * BASE.products  # and the weights in bf16
    assert recorded.device - launched.device == pytest.approx(batch) and batch > 1.1 * 4 * BASE.parameters
    assert recorded.least == launched.least and recorded.host == launched.host
    assert need("sed").device > need("sed", False).device
    for stage, settings in (("mlm", {}), ("sed", {"workers": 2}), ("sed", {"zero_stage": 1})):
        assert need(stage, **settings) == need(stage, False, **settings)
    monkeypatch.setattr("raysed.train.memory.OLDEST_TORCH", "99.0")
    assert need("contrastive") == launched


@pytest.mark.parametrize(("kind", "precision"), [("A100", "bf16"), ("", "bf16"), ("T4", "fp32")])
def test_a_gpu_without_bf16_is_planned_in_fp32(kind, precision):
    auto, bf16, fp32 = (Config(members={"precision": p}, sed={"precision": p}) for p in ("auto", "bf16", "fp32"))
    same, other = (bf16, fp32) if precision == "bf16" else (fp32, bf16)
    for stage in ("nli", "sed"):
        needs = [need_of(stage, config, LARGE, gpu=True, kind=kind) for config in (auto, same, other)]
        assert needs[0] == needs[1] != needs[2]


@given(st.sampled_from(sorted(stages())), st.integers(1, 10_000), st.booleans(), st.booleans())
def test_needs_grow_with_batch_and_encoder(stage, tokens, gpu, bf16):
    def need(shape: Shape, count: int) -> Need:
        return training_need(stages()[stage], getattr(Config(), stage), shape, count, gpu=gpu, bf16=bf16)

    here, larger, more = need(BASE, tokens), need(LARGE, tokens), need(BASE, 2 * tokens)
    assert (larger.device > here.device and more.device > here.device >= here.least > 0) or not gpu
    assert larger.host > here.host and more.host >= here.host
    assert (here.device == here.least == 0) == (not gpu)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_workers_of_a_learner_share_what_zero_shares(stage):
    size = LARGE.parameters

    def of(workers: int) -> float:
        sed = make_config({"sed": {"zero_stage": stage, "workers": workers}}).sed
        return training_need(stages()["sed"], sed, LARGE, 0, gpu=True, bf16=False).device

    shared = {0: 0, 1: 8, 2: 12}[stage]
    assert of(1) - of(4) == pytest.approx(1.1 * shared * size * 3 / 4)


def test_the_checkpoint_of_ct_holds_both_copies():
    sizes = {name: stages()[name].size(getattr(Config(), name), BASE) for name in ("ct", "nli", "sed")}
    ct, nli, sed = (checkpoint_bytes(size, BASE) for size in sizes.values())
    assert ct == 2 * nli == 2 * sed == 24 * BASE.parameters


# -- plans -----------------------------------------------------------------------------------------------------------


def planned(nodes: int, gpus: int, gigabytes: float, settings=None, recipes=("ct-sed",), rows=None, **about):
    """On nodes with so many GPUs of that memory, and 8 CPUs and 32 GB beside each."""
    cluster = Cluster(((8.0 * gpus, float(gpus)),) * nodes, node_bytes=32 * GB * gpus, gpu_bytes=gigabytes * GB)
    config = make_config({"recipes": list(recipes), **(settings or {})})
    inputs = dict.fromkeys(("encoder", "corpus", "tasks", "sts"), "")
    pairs = {"sts": PairRows(["a"], ["b"])} if "sts" in recipes else {}
    about |= {"pairs": pairs, "watched": defaultdict(list)}
    job = Job(config, parse_recipes(list(recipes)), Evaluation.load(config.evaluation), inputs, **about)
    vars(job)["shape"] = LARGE
    return plan_run(job, rehearsed(ensemble_then_distill, job), rows or {"corpus": 100_000}, cluster)


def test_ten_members_of_bert_large_on_gpus_of_24_gb():
    """Each holds one, not four: `cluster.yaml` has such machines."""
    (ct, learners), _ = planned(4, 1, 24, {"ct": {"steps": 50_000}})
    assert (ct.trainings, ct.updates, ct.at_once, ct.share.gpus) == (10, 50_000, 4, 1.0)
    assert ct.need.device < 0.85 * 24 * GB < 2 * ct.need.device
    assert (learners.what, learners.at_once, learners.workers) == ("learner", 1, 1)


def test_a_grid_counts_every_model():
    settings = {"sts": {"lower_bounds": [b / 20 for b in range(20)], "models": 10, "epochs": 4, "batch_size": 16}}
    (grid,), storage = planned(2, 8, 80, settings, ["sts"], {"pairs/sts": 5749})
    assert (grid.what, grid.trainings, grid.updates) == ("grid model", 200, 1436)
    assert storage["models"] == 4 * LARGE.parameters * 201


def test_teachers_from_outside_take_room():
    recipes, widths, rows = ["teachers-sed"], (384, 3072), 100_000
    _, storage = planned(1, 1, 80, recipes=recipes, widths=widths)
    assert storage["teachers' embeddings"] == 4 * rows * sum(widths)
    assert storage["targets"] == 4 * rows * LARGE.width, "that of the learner"
    about = {"config": None, "identity": "old", "title": "old", "watched": None, "weights_bytes": None}
    turned = {"combination": {"turn": "old"}}
    _, storage = planned(1, 1, 80, turned, recipes, widths=widths, old=SimpleNamespace(width=16, **about))
    assert storage["teachers' embeddings"] == 4 * rows * (sum(widths) + 16)
    _, storage = planned(1, 1, 80, {"sed": {"head": "keep"}}, recipes, widths=widths)
    assert storage["targets"] == 4 * rows * sum(widths), "heads lead to all that teachers say"


def test_queries_are_counted_with_the_corpus(tmp_path):
    (tmp_path / "tickets.txt").write_text("".join(f"Ticket {n} is open.\n" for n in range(80)))
    (tmp_path / "queries.txt").write_text("".join(f"what of {n}\n" for n in range(40)))
    given = [f"corpus.source={tmp_path}/tickets.txt", f"corpus.queries={tmp_path}/queries.txt"]
    given += ["sed.epochs=3", "sed.batch_size=10", "sed.checkpoint=last"]
    for texts, rows in (("null", 120), (20, 60)):
        shown = plan_text(load_config(find_config("distill"), [*given, f"sed.sentences={texts}"]), HERE)
        (updates,) = re.findall(r"teachers-sed +\d+ learners? +([\d,]+)", shown)
        assert int(updates) == rows // 10 * 3


def test_the_sentences_of_the_corpus_are_counted(tmp_path):
    lines = [f"Ticket {n} says that nothing works." for n in range(640)]
    (tmp_path / "tickets.txt").write_text("\n".join([*lines, *lines[:5]]))
    given = [f"corpus.source={tmp_path}/tickets.txt", "corpus.sentences=null"]
    config = load_config(find_config("quickstart"), given)
    shown = plan_text(config, HERE)
    (updates,) = re.findall(r"ct-sed +\d+ learners? +([\d,]+)", shown)
    assert shown.startswith("plan of quickstart for 1 node") and "4 CPUs" in shown.splitlines()[0]
    assert re.search(r"^storage: about [\d.]+ [MG]B: ", shown, re.MULTILINE)
    assert int(updates) == 640 // config.sed.batch_size * config.sed.epochs
    shown = plan_text(load_config(find_config("quickstart"), [*given, "sed.checkpoint=best_on_held_out"]), HERE)
    (updates,) = re.findall(r"ct-sed +\d+ learners? +([\d,]+)", shown)
    assert int(updates) == int(608 // config.sed.batch_size * config.sed.epochs), "a twentieth is held out"
