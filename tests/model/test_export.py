"""Exported models, compared with what sentence-transformers makes of them in a process that has no raysed."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import raysed.model.glow
from raysed.api import Result
from raysed.config import EncoderConfig, FlowConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.make.targets import teacher_sum
from raysed.model.calibration import Flow
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.library import export_model, parity
from raysed.model.load import NativeModel, load_model
from raysed.model.pretrained import load_encoder, load_start, save_encoder
from raysed.report.card import has_own_code
from raysed.store.storage import Storage
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN
from raysed.train.flow_fit import fit_flow

WIDTH, MAX_LENGTH = 16, 12
PLAIN = {f"bert-{layers}": ("bert", layers) for layers in (1, 2, "first_last")}
PLAIN |= {kind: (kind, 2) for kind in ("roberta", "distilbert", "mpnet")} | {"head": ("bert", 2)}
CALIBRATED = {"head-whiten": "head", "whiten": "bert-2", "flow-paper": "bert-2", "flow": "bert-2"}
NAMES = [*PLAIN, *CALIBRATED]

LOADER = r"""
import json, pathlib, socket, sys, warnings
sys.modules["raysed"] = None  # any import of it fails

def refuse(*arguments, **options):
    raise OSError("no network in this test")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np
from sentence_transformers import SentenceTransformer

names, sentences = json.loads(sys.stdin.read())
warnings.simplefilter("error")
found, facts = {}, {}
for name in names:
    model = SentenceTransformer(name, device="cpu", trust_remote_code=name.startswith("flow"))
    found[name] = model.encode(sentences, batch_size=16)
    modules = [type(module).__name__ for module in model]
    facts[name] = [modules, model.max_seq_length, model.similarity_fn_name, model.get_embedding_dimension()]
model.save("saved-again")
again = SentenceTransformer("saved-again", device="cpu", trust_remote_code=True)
facts["saved again"] = bool((again.encode(sentences, batch_size=16) == found[names[-1]]).all())
try:
    SentenceTransformer(names[-1], device="cpu")
except ValueError as error:
    facts["without trust"] = str(error)
np.savez("found.npz", **found)
pathlib.Path("facts.json").write_text(json.dumps(facts))
"""


class Case(NamedTuple):
    """What `export_model` gets, and the vectors that raysed computes for it."""

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    options: dict
    expected: np.ndarray

    def export(self, path: Path) -> None:
        export_model(self.encoder, self.tokenizer, path, **self.options)


@pytest.fixture(scope="module")
def make(make_encoder, tiny_encoder_dir) -> Callable[..., tuple[Encoder, PreTrainedTokenizerBase]]:
    return lambda kind="bert": (make_encoder(kind, 4), AutoTokenizer.from_pretrained(tiny_encoder_dir))


@pytest.fixture(scope="module")
def cases(make, sentences) -> dict[str, Case]:
    found = {}
    for name, (kind, layers) in PLAIN.items():
        encoder, tokenizer = make(kind)
        if name == "head":
            encoder.set_head(np.random.default_rng(1).normal(size=(WIDTH, 24)).astype(np.float32))
        x_ND = encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH), (layers,))[0]
        options = {"layers": layers, "max_length": MAX_LENGTH, "calibration": None}
        found[name] = Case(encoder, tokenizer, options, x_ND)
    for name, plain in CALIBRATED.items():
        x_ND, variant = found[plain].expected, "paper" if name == "flow-paper" else "released"
        config = FlowConfig(variant=variant, batch_size=4, epochs=5)
        calibration = fit_flow(x_ND, config, seed=0) if name.startswith("flow") else WHITEN.fit(x_ND)
        options = found[plain].options | {"calibration": calibration}
        found[name] = found[plain]._replace(options=options, expected=calibration.transform(x_ND))
    return found


@pytest.fixture(scope="module")
def root(cases, tmp_path_factory) -> Path:
    """A directory with the exports of all cases."""
    path = tmp_path_factory.mktemp("export")
    for name, case in cases.items():
        case.export(path / name)
    return path


@pytest.fixture(scope="module")
def by_library(root, sentences) -> tuple[dict[str, np.ndarray], dict, str]:
    """sentence-transformers' vectors, what else it found, and all that it printed."""
    environment = os.environ | {"HF_HOME": str(root / "cache")}
    environment["DS_ACCELERATOR"] = "cpu"  # where accelerate is installed, DeepSpeed would look for one and say so
    options = {"env": environment, "cwd": root, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", LOADER], input=json.dumps([NAMES, sentences]), **options)
    assert done.returncode == 0, done.stderr
    with np.load(root / "found.npz") as found:
        return dict(found), json.loads((root / "facts.json").read_text()), done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_settings_are_the_same(cases, root, by_library, sentences, name):
    """In the library, and read back by `evaluate`, where its own pooling and length count.

    Calibrations enlarge rounding errors as much as they enlarge coordinates.
    """
    expected = cases[name].expected
    scale = 3 * np.abs(expected).max() if name in CALIBRATED else 1.0
    np.testing.assert_allclose(by_library[0][name], expected, rtol=0, atol=1e-5 * scale)
    assert by_library[1][name][1:] == [MAX_LENGTH, "cosine", expected.shape[1]]
    model = load_model(str(root / name), (1, 3), 5)
    assert isinstance(model, NativeModel)
    np.testing.assert_allclose(model.embed(sentences), expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))


def test_modules_are_built_in_but_for_the_flow(by_library):
    listed = {name: by_library[1][name][0] for name in NAMES}
    assert listed["bert-1"] == ["Transformer", "Pooling"]
    assert listed["bert-first_last"] == ["Transformer", "WeightedLayerPooling", "Pooling"]
    assert listed["head"] == ["Transformer", "WeightedLayerPooling", "Pooling", "Dense"]
    assert listed["head-whiten"][-2:] == ["Dense", "Dense"]
    assert listed["whiten"][-1] == "Dense" and listed["flow"][-1] == "FlowHead"


def test_a_flow_needs_trust_says_so_and_survives_being_saved_by_the_library(by_library):
    _, facts, printed = by_library
    assert "trust_remote_code=True" in facts["without trust"] and facts["saved again"] is True and printed == ""


def test_two_exports_are_the_same_bytes(cases, tmp_path, sentences):
    """Though the tokenizer keeps the truncation and padding of its last call."""
    case = cases["flow"]
    case.tokenizer(sentences, padding="max_length", truncation=True, max_length=7)
    case.export(tmp_path / "one")
    case.tokenizer(sentences)
    case.export(tmp_path / "two")
    one, two = (
        {str(p.relative_to(d)): p.read_bytes() for p in d.rglob("*") if p.is_file()} for d in tmp_path.iterdir()
    )
    assert one == two
    own = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "glow.py"}
    of_modules = {f"{module}/config.json" for module in ("1_WeightedLayerPooling", "2_Pooling", "3_FlowHead")}
    weights = {"model.safetensors", "1_WeightedLayerPooling/model.safetensors", "3_FlowHead/model.safetensors"}
    assert set(one) == own | of_modules | weights | {"config.json", "tokenizer.json", "tokenizer_config.json"}
    tokenizer = json.loads(one["tokenizer_config.json"])
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast", "releases with an ONNX backend know no other"


def test_arguments_stay_as_they_are(make, tmp_path):
    encoder, tokenizer = make()
    limit, before = tokenizer.model_max_length, {k: v.clone() for k, v in encoder.state_dict().items()}
    export_model(encoder, tokenizer, tmp_path, layers=2, max_length=5, calibration=None)
    assert tokenizer.model_max_length == limit and not encoder.transformer.config.output_hidden_states
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_prompts_are_those_of_queries_and_documents(cases, tmp_path, sentences):
    """And of nothing else: `encode` adds none, so an export with prompts is compared as one without."""
    case, prompts = cases["bert-2"], {"query": "the big ", "document": "on "}
    case._replace(options={**case.options, "prompts": prompts}).export(tmp_path)
    model = SentenceTransformer(str(tmp_path), device="cpu")
    for role, embed in (("query", model.encode_query), ("document", model.encode_document)):
        texts = [prompts[role] + sentence for sentence in sentences]
        expected_ND = encode(case.encoder, tokenize(case.tokenizer, texts, MAX_LENGTH), (2,))[0]
        np.testing.assert_allclose(embed(sentences), expected_ND, atol=1e-5)
    assert parity(tmp_path, sentences, case.expected) < 1e-4


def test_code_is_the_packages_own_and_stands_alone(root):
    code = (root / "flow" / "glow.py").read_text()
    assert code == Path(raysed.model.glow.__file__).read_text()
    tree = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in tree}
    assert not {name.split(".")[0] for name in names} - (sys.stdlib_module_names | {"torch", "safetensors"})
    assert not any((root / "whiten").glob("*.py"))


def test_a_flow_stays_initialised_and_computes_in_its_own_precision(root):
    assert load_file(root / "flow" / "3_FlowHead" / "model.safetensors")["initialized"].item() is True
    features = raysed.model.glow.FlowHead(Flow(8))({"sentence_embedding": torch.ones(2, 8, dtype=torch.float16)})
    assert features["sentence_embedding"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "place"),
    [("bert-2", "1_WeightedLayerPooling/model.safetensors"), ("flow", "3_FlowHead/model.safetensors")],
)
def test_parity_is_small_and_sees_a_changed_weight(cases, tmp_path, sentences, name, place):
    cases[name].export(tmp_path)
    assert parity(tmp_path, sentences, cases[name].expected) < 1e-5
    tensors = load_file(tmp_path / place)
    changed = next(key for key, value in tensors.items() if value.is_floating_point())
    tensors[changed].view(-1)[0] += 0.5
    save_file(tensors, tmp_path / place, metadata={"format": "pt"})
    assert parity(tmp_path, sentences, cases[name].expected) > 1e-3


OWN_CODE = """
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


def test_own_code_is_kept_and_runs_where_it_is_trusted_only(make, tmp_path, monkeypatch, sentences):
    """An encoder that came with code keeps it as an artefact of a run and as an exported model."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    base, storage, trusting = tmp_path / "base", Storage(str(tmp_path / "runs"), "run"), {"trust_remote_code": True}
    save_encoder(*make(), base, MAX_LENGTH)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    own = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": auto_map}
    (base / "config.json").write_text(json.dumps(json.loads((base / "config.json").read_text()) | own))
    (base / "own.py").write_text(OWN_CODE)
    loaded = load_encoder(EncoderConfig(path=str(base), max_length=MAX_LENGTH, **trusting))
    storage.commit("member", lambda path: save_encoder(*loaded, path), {})
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_start(EncoderConfig(), storage.fetch("member"))
    encoder, tokenizer = load_start(EncoderConfig(**trusting), storage.fetch("member"))
    assert type(encoder.transformer).__name__ == "OwnModel"
    export_model(encoder, tokenizer, tmp_path / "model", layers=1, max_length=MAX_LENGTH, calibration=None)
    tokens = tokenize(tokenizer, sentences, MAX_LENGTH)
    expected = encode(encoder, tokens)[0]
    assert (tmp_path / "model" / "own.py").exists() and has_own_code(tmp_path / "model")
    assert parity(tmp_path / "model", sentences, expected, **trusting) < 1e-5
    storage.commit("model", lambda path: shutil.copytree(tmp_path / "model", path, dirs_exist_ok=True), {})
    for trusts in (True, False):
        says = {"config": {"encoder": {"trust_remote_code": not trusts}}}  # which others may write
        storage.write_text("report.json", json.dumps(says))
        with nullcontext() if trusts else pytest.raises(ValueError, match="trust_remote_code"):
            np.testing.assert_allclose(Result(storage, trusts).model.encode(sentences), expected, atol=1e-5)
    sums = teacher_sum([storage.fetch("member")] * 2, **trusting)
    np.testing.assert_allclose(sums(tokens), 2 * expected, atol=1e-5)


def test_a_calibration_of_another_width_is_refused(make, tmp_path):
    with pytest.raises(UserError, match="width 8 does not fit embeddings of width 16"):
        export_model(*make(), tmp_path, layers=1, max_length=9, calibration=Flow(8))
