"""Model files of other people: no code of a hub, no missing weights, no cut that does not last."""

import fnmatch
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Router, Transformer
from transformers import AutoConfig, AutoTokenizer, GPT2Config, GPT2Model, GPTNeoConfig, GPTNeoModel
from transformers.integrations import hub_kernels
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from raysed.config import Config, EncoderConfig, TeacherConfig
from raysed.errors import UserError
from raysed.model.load import load_model
from raysed.model.pretrained import check_encoder, check_start, load_checkpoint, load_encoder
from raysed.model.shape import shape_of
from raysed.model.teacher import load_teacher
from raysed.plan.check import check
from raysed.store import hub
from raysed.store.hub import model_identity

SENTENCES = ["The cat sat.", "A dog ran under the tree."]


def change(file: Path, **settings: object) -> None:
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**found, **settings}))


@pytest.fixture(scope="module")
def pooled(tiny_encoder_dir, tmp_path_factory) -> dict[str, Path]:
    """A plain transformer as models of sentence-transformers, by pooling."""
    places = {pooling: tmp_path_factory.mktemp(pooling) for pooling in ("mean", "max", "lasttoken")}
    for pooling, place in places.items():
        modules = [Transformer(str(tiny_encoder_dir), max_seq_length=12), Pooling(16, pooling)]
        SentenceTransformer(modules=modules, device="cpu").save(str(place))
    return places


# -- code of a hub ---------------------------------------------------------------------------------------------------

KERNEL = "somebody/kernel"
FLASH = "flash_attention_2"
NAMED_BY = {
    "config": ("config.json", {"attn_implementation": KERNEL}),
    "a revision": ("config.json", {"attn_implementation": f"{KERNEL}@v1:attention"}),
    "the private name": ("config.json", {"_attn_implementation": KERNEL}),
    "parts": ("config.json", {"attn_implementation": {"": KERNEL}}),
    "flash attention": ("config.json", {"attn_implementation": FLASH}),
    "old options": ("sentence_bert_config.json", {"model_args": {"attn_implementation": KERNEL}}),
    "options": ("sentence_bert_config.json", {"model_kwargs": {"attn_implementation": KERNEL}}),
    "options of the config": ("sentence_bert_config.json", {"config_kwargs": {"attn_implementation": KERNEL}}),
    "layers": ("sentence_bert_config.json", {"model_kwargs": {"use_kernels": True, "allow_all_kernels": True}}),
}


@pytest.fixture
def kernels(monkeypatch) -> Mock:
    """Stands for the package `kernels`, which fetches and imports code: every request is an error."""
    asked = Mock(side_effect=ValueError("a kernel of the hub was asked for"))
    for module in (hub_kernels, transformers.modeling_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda: True)
    for name in ("get_kernel", "kernelize"):
        monkeypatch.setattr(hub_kernels, name, asked)
    return asked


@pytest.mark.parametrize("named_by", NAMED_BY)
def test_no_attention_of_a_hub_computes(pooled, tmp_path, kernels, named_by):
    """Not in a plain transformer, in packed rows, by sentence-transformers, or if the model's own code may run."""
    file, settings = NAMED_BY[named_by]
    for pooling in ("mean", "max"):
        path = shutil.copytree(pooled[pooling], tmp_path / pooling)
        expected = load_model(str(path)).embed(SENTENCES)
        change(path / file, **settings)
        for trusted in (False, True):
            found = load_model(str(path), trust_remote_code=trusted).embed(SENTENCES)
            np.testing.assert_allclose(found, expected, atol=1e-5)
    config = EncoderConfig(path=str(path), max_length=12)
    for load in (load_encoder, check_encoder, shape_of):
        load(config)
    load_checkpoint(path)
    kernels.assert_not_called()


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "somebody/code--own.OwnConfig"}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "somebody/code--own.OwnTokenizer"]}}),
        ("1_Own/config.json", {"auto_map": {"AutoModel": "somebody/code--own.Own"}}),
        ("modules.json", {"type": "somebody/code--own.Own"}),
    ],
)
def test_code_in_another_repository_is_part_of_a_trusted_model(tiny_encoder_dir, tmp_path, monkeypatch, file, settings):
    path, code = shutil.copytree(tiny_encoder_dir, tmp_path / "model"), tmp_path / "code"
    code.mkdir()
    (path / "1_Own").mkdir()
    change(path / file, **settings)
    monkeypatch.setattr(hub, "snapshot_download", lambda name, allow_patterns: {"somebody/code": str(code)}[name])

    def identities(trusted: bool) -> list[object]:
        teacher = load_teacher(TeacherConfig(path=str(path), trust_remote_code=trusted))
        return [teacher.identity, model_identity(EncoderConfig(path=str(path), trust_remote_code=trusted))]

    found = []
    for content in ("a = 1", "a = 2"):
        (code / "own.py").write_text(content)
        found.append((identities(False), identities(True)))
    (plain, before), (still, after) = found
    assert plain == still and before[0] != after[0] and before[1] != after[1]


# -- weights ---------------------------------------------------------------------------------------------------------


def compiled(path: Path) -> None:
    """Rename weights as torch.compile does."""
    tensors = load_file(path / "model.safetensors")
    save_file({f"_orig_mod.{name}": x for name, x in tensors.items()}, path / "model.safetensors", {"format": "pt"})


def without_one(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def of_another_width(path: Path) -> None:
    change(path / "config.json", intermediate_size=20)
    change(path / "sentence_bert_config.json", model_kwargs={"ignore_mismatched_sizes": True})


def of_the_queries(path: Path) -> None:
    parts = [[Transformer(str(path), max_seq_length=12), Pooling(16, "mean")] for _ in range(2)]
    shutil.rmtree(path)
    SentenceTransformer(modules=[Router.for_query_document(*parts)], device="cpu").save(str(path))
    (place,) = path.glob("query_0_*")
    compiled(place)


@pytest.mark.parametrize("damage", [compiled, without_one, of_another_width, of_the_queries])
@pytest.mark.parametrize("pooling", ["mean", "max", "lasttoken", "trusted"])
def test_weights_that_are_missing_are_counted(pooled, tmp_path, damage, pooling):
    trusted = pooling == "trusted"
    path = shutil.copytree(pooled["max" if trusted else pooling], tmp_path / "model")
    damage(path)
    with pytest.raises(UserError, match=r"lacks [1-9]\d* weights, such as \w+|have different shapes|size mismatch"):
        load_model(str(path), trust_remote_code=trusted)
    if damage is not of_the_queries:
        for load in (load_checkpoint, lambda place: load_encoder(EncoderConfig(path=str(place), max_length=9))):
            with pytest.raises((UserError, RuntimeError), match=r"lacks [1-9]\d* weights, such as \w+|mismatch"):
                load(path)


def test_a_pooler_that_is_used_is_not_missing(tiny_encoder_dir, tmp_path):
    form = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    module = Transformer(str(tiny_encoder_dir), modality_config=form, module_output_name="sentence_embedding")
    SentenceTransformer(modules=[module], device="cpu").save(str(tmp_path))
    load_model(str(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 2 weights, such as pooler\.dense\.bias"):
        load_model(str(tmp_path))


def scaled(vocabulary: int) -> torch.nn.Module:
    """Each layer of it divides by its index."""
    small = {"n_embd": 16, "n_head": 2, "n_layer": 4, "n_positions": 40}
    return GPT2Model(GPT2Config(vocab_size=vocabulary, scale_attn_by_inverse_layer_idx=True, **small))


def alternating(vocabulary: int) -> torch.nn.Module:
    """Its configuration lists the kinds of its layers twice."""
    kinds = [[["global", "local"], 2]]
    small = {"hidden_size": 16, "num_layers": 4, "num_heads": 2, "max_position_embeddings": 40}
    return GPTNeoModel(GPTNeoConfig(vocab_size=vocabulary, attention_types=kinds, **small))


@pytest.fixture
def saved(tiny_tokenizer, tmp_path) -> Callable[[Callable], str]:
    def save(make: Callable) -> str:
        torch.manual_seed(0)
        model = make(len(tiny_tokenizer))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(5)  # as in a trained model, each layer counts
        model.save_pretrained(tmp_path / "model")
        tiny_tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


@pytest.mark.parametrize("make", [scaled, alternating])
def test_a_cut_that_does_not_survive_saving_is_refused_before_any_work(saved, monkeypatch, make):
    path = saved(make)
    monkeypatch.setattr("raysed.plan.check.check_teachers", lambda config, teachers: ())
    encoder = {"path": path, "keep_layers": "half", "max_length": 12, "pool_layers": 1}
    for teachers, place in (([path], "teachers: "), ([], r"encoder\.path: ")):
        settings = {
            "encoder": encoder,
            "evaluation": {"pool_layers": [1]},
            "teachers": teachers,
            "recipes": ["teachers-sed"] if teachers else ["ct"],
        }
        words = "the layers of .* cannot be cut like this: saved and loaded again, .*; keep its first"
        with pytest.raises(UserError, match=f"^{place}{words}"):
            check(Config(**settings))


def test_a_cut_that_survives_saving_is_none_to_refuse(saved):
    path = saved(scaled)
    for kept in ({"keep_layers": [0, 1]}, {"model_kwargs": {"num_hidden_layers": 2}}):
        check_start(EncoderConfig(path=path, max_length=12, **kept))


def test_a_cut_with_weights_of_other_names_is_refused(tiny_tokenizer, tmp_path):
    """The first layer of ModernBERT has no norm before its attention; untrained norms leave vectors as they are."""
    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 4}
    settings = transformers.ModernBertConfig(
        vocab_size=len(tiny_tokenizer), max_position_embeddings=40, **small, **special
    )
    for saved in (transformers.ModernBertModel(settings), tiny_tokenizer):
        saved.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="saved and loaded again, it has other weights"):
        check_start(EncoderConfig(path=str(tmp_path), keep_layers=[3], max_length=12))


# -- the hub ---------------------------------------------------------------------------------------------------------


def test_vocabularies_of_all_tokenizers_are_downloaded():
    folder, names = Path(transformers.__file__).parent / "models", set()
    for kind in TOKENIZER_MAPPING_NAMES:
        for file in folder.glob(f"{kind.replace('-', '_')}/tokenization_*.py"):
            (files,) = re.findall(r"VOCAB_FILES_NAMES = \{(.*?)\}", file.read_text(), re.DOTALL) or [""]
            names |= set(re.findall(r': "([\w.-]+)"', files))
    patterns = [f"*{suffix}" for suffix in hub.MODEL_FILES]
    missed = {name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
    assert {"bpe.codes", "source.spm", "vocab.txt"} <= names and not missed


def answer(kind: type[HfHubHTTPError], message: str) -> HfHubHTTPError:
    return kind(f"401 Client Error. (Request ID: Root=1)\n\n{message}", response=Mock(headers={}))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            answer(GatedRepoError, "Cannot access gated repo for url x.\nAccess to model a/b is restricted."),
            "gated repo for url x. Access to model a/b is restricted; ask for access on the model's page, then run `hf",
        ),
        (
            answer(HfHubHTTPError, "403 Forbidden: no.\nYour token may not read."),
            "no. Your token may not read",
        ),
    ],
)
def test_what_the_hub_answers_is_said_with_what_helps(monkeypatch, error, said):
    def wrapped(*arguments: object, **named: object) -> None:
        raise OSError(str(error)) from error

    monkeypatch.setattr(hub, "snapshot_download", Mock(side_effect=error))
    monkeypatch.setattr(AutoConfig, "from_pretrained", wrapped)
    monkeypatch.setattr("raysed.model.pretrained.find_adapter_config_file", lambda *path, **options: None)
    for load in (load_model, lambda name: check_encoder(EncoderConfig(path=name))):
        with pytest.raises(UserError) as caught:
            load("a/b")
        assert said in str(caught.value) and "Client Error" not in str(caught.value)


def test_pickled_weights_of_a_hub_are_named(exports, tmp_path):
    path = shutil.copytree(exports["whiten"], tmp_path / "model")
    (path / "3_Dense/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"modules cannot be read: .*; check modules\.json, .*: no pickled"):
        load_model(str(path))


def test_a_sentencepiece_file_needs_sentencepiece(tiny_encoder_dir, monkeypatch):
    blamed = ValueError("`tiktoken` is required to read a `tiktoken` file. Install it with `pip install tiktoken`.")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", Mock(side_effect=blamed))
    monkeypatch.setattr("raysed.model.pretrained.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^encoder\.path: .* needs a package; run pip install sentencepiece"):
        load_encoder(EncoderConfig(path=str(tiny_encoder_dir), max_length=9))
