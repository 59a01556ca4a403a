"""Any model loaded: what is computed here is what sentence-transformers gives; mistakes are one sentence each."""

import json
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, Transformer
from tokenizers import models
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
)

from raysed.config import EncoderConfig, Layers, TeacherConfig
from raysed.data.sources import readable
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model import library
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.load import LibraryModel, NativeModel, load_model
from raysed.model.pretrained import check_encoder, load_encoder
from raysed.model.teacher import load_teacher
from raysed.store import hub

MAX_LENGTH = 12


def by_library(path: Path, sentences: list[str]) -> np.ndarray:
    return SentenceTransformer(str(path), device="cpu", trust_remote_code=True).encode(sentences)


def test_code_beside_a_flow_is_not_run(exports, sentences, tmp_path):
    path = shutil.copytree(exports["flow"], tmp_path / "flow")
    assert (path / "glow.py").exists()
    (path / "glow.py").write_text("raise SystemExit('run')")
    found = load_model(str(path)).embed(sentences)
    assert (found == load_model(str(exports["flow"])).embed(sentences)).all()
    assert np.abs(library.load(path).encode(sentences) - found).max() < 1e-4


def test_a_model_saved_by_sentence_transformers_is_computed_here(exports, sentences, tmp_path):
    """Its own classes' names and keys, with a scaling at the end, and without a maximum length of its own."""
    saved = SentenceTransformer(str(exports["2"]), device="cpu")
    saved.append(Normalize())
    saved.save(str(tmp_path))
    model = load_model(str(tmp_path))
    assert isinstance(model, NativeModel) and model.layers == 2 and model.description.endswith("12 tokens")
    found = model.embed(sentences)
    assert np.abs(found - saved.encode(sentences)).max() < 1e-5
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_plain_transformer_takes_the_pooling_that_is_asked_for(tiny_encoder_dir, make_transformer, sentences):
    tokens = tokenize(AutoTokenizer.from_pretrained(tiny_encoder_dir), sentences, MAX_LENGTH)
    for layers, expected in zip((2, 1), encode(Encoder(make_transformer("bert")), tokens, (2, 1))):
        model = load_model(str(tiny_encoder_dir), layers, MAX_LENGTH)
        assert model.layers == layers and np.abs(model.embed(sentences) - expected).max() < 1e-5


def change(file: Path, **settings: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


POOLING, NO_MEAN = "2_Pooling/config.json", {"pooling_mode_mean_tokens": False}
TANH = {"activation_function": "torch.nn.modules.activation.Tanh"}
PROMPT = {"prompts": {"query": "the cat "}, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("file", "settings", "said"),
    [
        (POOLING, {**NO_MEAN, "pooling_mode_cls_token": True}, "first token, layers 2, Dense; 12 tokens"),
        ("3_Dense/config.json", TANH, "mean over tokens, layers 2, Dense; 12 tokens"),
        (POOLING, {**NO_MEAN, "pooling_mode_max_tokens": True}, "by sentence-transformers (its pooling is max)"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "(its transformer has do_lower_case: true)"),
        ("config_sentence_transformers.json", PROMPT, "(it prepends a prompt to sentences)"),
        (None, {}, "(its layers are weighted unequally)"),
        ("config.json", {"output_hidden_states": False}, "(its transformer does not return the layers that it pools)"),
    ],
)
def test_other_modules_are_computed_as_the_library_does(exports, sentences, tmp_path, file, settings, said):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    if file:
        change(path / file, **settings)
    else:
        save_file({"layer_weights": torch.tensor([0.3, 0.7])}, path / "1_WeightedLayerPooling/model.safetensors")
    model = load_model(str(path), 3)
    assert model.description.endswith(said) and isinstance(model, LibraryModel) == ("(" in said)
    found, expected = model.embed(sentences), by_library(path, sentences)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    plain = load_model(str(exports["whiten"])).embed(sentences)
    assert np.abs(found - plain).max() > 1e-3 or "do_lower_case" in settings, "the change is of no effect"


@pytest.mark.parametrize(("similarity", "is_noted"), [("dot", True), ("cosine", False), (None, False)])
def test_a_model_of_another_similarity_is_noted(exports, tmp_path, caplog, similarity, is_noted):
    caplog.set_level("INFO", "raysed")
    path = shutil.copytree(exports["1"], tmp_path / "other")
    (path / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": similarity}))
    load_model(str(path))
    assert (f"is made for the similarity {similarity}, but raysed compares by cosine" in caplog.text) == is_noted


def test_the_library_computes_in_fp32_whatever_is_stored(exports, tmp_path):
    path = shutil.copytree(exports["whiten"], tmp_path / "other")
    change(path / POOLING, **NO_MEAN, pooling_mode_max_tokens=True)
    AutoModel.from_pretrained(path, dtype=torch.bfloat16).save_pretrained(path)
    model = load_model(str(path)).model
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


SMALL = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize("name", ["T5", "MT5", "UMT5"])
def test_an_encoder_of_t5_saved_again_is_computed_by_the_library(tiny_tokenizer, sentences, tmp_path, name):
    """Transformers would add a decoder without weights."""
    config = getattr(transformers, f"{name}Config")(**SMALL, vocab_size=len(tiny_tokenizer))
    getattr(transformers, f"{name}EncoderModel")(config).save_pretrained(tmp_path / "plain")
    tiny_tokenizer.save_pretrained(tmp_path / "plain")
    modules = [Transformer(str(tmp_path / "plain")), Pooling(16)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "saved"))
    model = load_model(str(tmp_path / "saved"))
    assert model.description == "by sentence-transformers (its transformer has a decoder, or sees its padding)"
    assert np.abs(model.embed(sentences) - by_library(tmp_path / "saved", sentences)).max() < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_model_without_a_token_for_padding_pads_with_another(exports, sentences, tmp_path, pooling):
    """Padding is masked, so its token does not matter; texts are cut to the model's 40 positions."""
    path = changed_copy(exports["1"], tmp_path, pooling)
    expected = by_library(path, sentences)
    change(path / "tokenizer_config.json", pad_token=None, eos_token="[SEP]")
    change(path / "sentence_bert_config.json", max_seq_length=500)
    model, config = load_model(str(path)), EncoderConfig(path=str(path), max_length=MAX_LENGTH)
    assert isinstance(model, LibraryModel) == (pooling == "max") and load_encoder(config)[1].pad_token == "[SEP]"
    short = [len(text.split()) < 9 for text in sentences]
    assert np.abs(model.embed(sentences) - expected)[short].max() < 1e-5 and sum(short) > 20
    assert np.isfinite(model.embed(["the cat " * 99])).all()


def changed_copy(source: Path, folder: Path, pooling: str) -> Path:
    path = shutil.copytree(source, folder / "other")
    change(path / "1_Pooling/config.json", **{**NO_MEAN, f"pooling_mode_{pooling}_tokens": True})
    return path


# -- other kinds of models -------------------------------------------------------------------------------------------


def encoder_of(path: Path) -> list[torch.nn.Module]:
    return [Transformer(str(path), max_seq_length=MAX_LENGTH), Pooling(16, "mean")]


@pytest.mark.parametrize("prompts", [{}, {"query": "the cat "}, {"other": "a bird "}])
def test_queries_and_documents_go_through_encoders_of_their_own(
    make_transformer, tiny_tokenizer, tiny_encoder_dir, sentences, tmp_path, prompts
):
    make_transformer("bert", seed=1).save_pretrained(tmp_path / "other")
    tiny_tokenizer.save_pretrained(tmp_path / "other")
    router = Router.for_query_document(encoder_of(tmp_path / "other"), encoder_of(tiny_encoder_dir))
    default = "other" if "other" in prompts else None
    model = SentenceTransformer(modules=[router], prompts=prompts, default_prompt_name=default, device="cpu")
    model.save(str(tmp_path / "router"))
    loaded, teacher = load_model(str(tmp_path / "router")), load_teacher(TeacherConfig(path=str(tmp_path / "router")))
    queries, documents = model.encode_query(sentences), model.encode_document(sentences)
    prompted = {f"prompted {role}": model.encode(sentences, prompt="", task=role) for role in ("query", "document")}
    expected = {"": model.encode(sentences), "query": queries, "document": documents, **prompted}
    for role, expected_ND in expected.items():
        for found_ND in (loaded.embed(sentences, role=role), teacher.embed(sentences, role)):
            np.testing.assert_allclose(found_ND, expected_ND, atol=1e-5, err_msg=role)
    assert not np.allclose(queries, documents, atol=0.1)
    asked = load_teacher(TeacherConfig(path=str(tmp_path / "router"), query_prompt="she ", prompt="we "))
    np.testing.assert_allclose(asked.embed(["ran"], "query"), model.encode_query(["ran"], prompt="she "), atol=1e-5)
    with pytest.raises(UserError, match=r"^encoder\.path: .*router' does not begin with a transformer: "):
        check_encoder(EncoderConfig(path=str(tmp_path / "router")))


@pytest.fixture
def with_head(tiny_encoder_dir, tiny_tokenizer, tmp_path):
    """Saves the tiny encoder with a head of a kind."""

    def save(kind: type) -> Path:
        kind.from_pretrained(tiny_encoder_dir).save_pretrained(tmp_path / "head")
        tiny_tokenizer.save_pretrained(tmp_path / "head")
        return tmp_path / "head"

    return save


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        (CrossEncoder, AutoModelForSequenceClassification),
        (SparseEncoder, AutoModelForMaskedLM),
        (MultiVectorEncoder, AutoModel),
    ],
)
def test_a_model_of_another_kind_is_refused(with_head, tmp_path, kind, head):
    path, model = tmp_path / "model", kind(str(with_head(head)), device="cpu")
    model.save_pretrained(str(path))
    assert f"it is a {kind.__name__}, which gives no sentence embeddings; name a sentence-" in refusal(path)
    with pytest.raises(UserError, match=f"^teachers: .*: it is a {kind.__name__}, which gives no"):
        load_teacher(TeacherConfig(path=str(path))).check()
    load_encoder(EncoderConfig(path=str(path), max_length=MAX_LENGTH))  # training may start from its transformer


@pytest.mark.parametrize("mark", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_a_cross_encoder_of_an_older_release_is_refused_and_its_bi_encoder_is_not(with_head, tmp_path, mark):
    path = with_head(AutoModelForSequenceClassification)
    change(path / "config.json", **{mark: {"version": "4.1.0"}})
    assert "it is a CrossEncoder" in refusal(path)
    SentenceTransformer(modules=encoder_of(path), device="cpu").save(str(tmp_path / "both"))
    assert mark in json.loads((tmp_path / "both/config.json").read_text())
    load_model(str(tmp_path / "both"))


def test_a_head_that_is_not_used_is_named(with_head, tiny_encoder_dir, caplog):
    for path, names in ((tiny_encoder_dir, []), (with_head(BertForSequenceClassification), ["BertForSequence"])):
        caplog.clear()
        load_model(str(path), 1, MAX_LENGTH)
        assert [name in record.getMessage() for name in names for record in caplog.records] == [True] * len(names)


@pytest.mark.parametrize("has_modules", [True, False])
@pytest.mark.parametrize("has_base", [True, False])
def test_an_adapter_is_not_taken_for_its_base(exports, tiny_encoder_dir, tmp_path, has_base, has_modules):
    """Peft is no package that the tests need: without it, the adapter is refused."""
    path = shutil.copytree(exports["1"] if has_modules else tiny_encoder_dir, tmp_path / "adapter")
    settings = {"peft_type": "LORA", "base_model_name_or_path": str(tiny_encoder_dir), "target_modules": ["query"]}
    (path / "adapter_config.json").write_text(json.dumps({**settings, "r": 2}))
    query = "base_model.model.encoder.layer.0.attention.self.query"
    weights = {f"{query}.lora_A.weight": torch.ones(2, 16), f"{query}.lora_B.weight": torch.ones(16, 2)}
    save_file(weights, path / "adapter_model.safetensors", {"format": "pt"})
    if not has_base:
        for name in ("config.json", "model.safetensors"):
            (path / name).unlink()
    with pytest.raises(UserError, match=r"^encoder\.path: .* is a LoRA adapter: merge it with peft's merge_and_unload"):
        check_encoder(EncoderConfig(path=str(path)))
    assert re.search(r"it is a LoRA adapter, and .* cannot load it: .* requires .*pip install peft", refusal(path))


def test_the_layout_of_the_first_releases_is_a_start_too(exports, tmp_path):
    path = shutil.copytree(exports["1"], tmp_path / "old")
    inner = path / "0_Transformer"
    inner.mkdir()
    for file in path.iterdir():
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(inner / file.name)
    first, *rest = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([{**first, "path": "0_Transformer"}, *rest]))
    config = EncoderConfig(path=str(path), max_length=MAX_LENGTH, keep_layers="half", pool_layers=1)
    assert check_encoder(config) == load_encoder(config)[0].transformer.config.num_hidden_layers == 1
    assert load_model(str(path)).embed(["a cat"]) == pytest.approx(by_library(exports["1"], ["a cat"]), abs=1e-5)


# -- mistakes --------------------------------------------------------------------------------------------------------


def refusal(name: object, layers: Layers = 1, max_length: int = MAX_LENGTH) -> str:
    with pytest.raises(UserError) as caught:
        load_model(str(name), layers, max_length)
    message = str(caught.value)
    assert message.startswith(f"--models {name}: ") and "\n" not in message
    return message


def test_what_the_library_raises_names_the_text(exports, sentences, tmp_path):
    path = changed_copy(exports["1"], tmp_path, "max")
    model = load_model(str(path))
    model.model.tokenizer.backend_tokenizer.model = models.WordPiece({"cat": 7}, unk_token="[UNK]")
    with pytest.raises(UserError, match=r"^the model '.*' fails on the text 'dog': WordPiece error: Missing \[UNK\]"):
        model.embed([*["cat"] * 20, "dog", *["cat"] * 50])
    change(path / "config_sentence_transformers.json", truncate_dim="x")
    with pytest.raises(UserError, match=r"^the model '.*' fails on the text 'A sentence.': slice indices must be "):
        load_model(str(path)).embed(["A sentence."])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"type": "glow.Other"}, "its module glow.Other is custom code"),
        ({"type": "sentence_transformers_like.Head"}, "its module sentence_transformers_like.Head is custom code"),
        ({"path": "../b"}, "lies outside of the model's directory, in '../b'"),
    ],
)
def test_code_of_a_model_and_modules_outside_of_it_are_refused(exports, tmp_path, changes, problem):
    path = shutil.copytree(exports["1"], tmp_path / "own")
    first, second = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([first, second | changes]))
    for name in ("glow", "sentence_transformers_like"):
        (path / f"{name}.py").write_text("raise SystemExit('run')")
    assert problem in refusal(path)
    with pytest.raises(UserError, match=re.escape(problem)):
        library.load(path, trust_remote_code=True)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), OSError(12, "Cannot allocate memory")]
)
def test_no_setting_is_blamed_where_memory_runs_out(monkeypatch, tiny_encoder_dir, error):
    monkeypatch.setattr(AutoModel, "from_pretrained", Mock(side_effect=error))
    with pytest.raises(UserError, match=r"^there is not enough memory; free some, .* allocate memory"):
        load_encoder(EncoderConfig(path=str(tiny_encoder_dir), max_length=9))
    assert "not enough memory" in refusal(tiny_encoder_dir)
    with pytest.raises(UserError, match=r"^there is not enough memory; .*\(a.parquet cannot be read: "):
        with readable("a.parquet"):
            raise pa.ArrowMemoryError("malloc of size 8 failed")


def test_a_hub_model_is_fetched_without_code_unless_that_is_trusted(monkeypatch, tiny_encoder_dir):
    asked = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(name=name, **options)
        return str(tiny_encoder_dir)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    load_model("somebody/model", 1, MAX_LENGTH)
    assert asked["name"] == "somebody/model"
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in asked["allow_patterns"])
    hub.model_directory("somebody/model", trust_remote_code=True)
    assert "*.py" in asked["allow_patterns"]
