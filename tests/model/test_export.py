"""Exported models, compared with what sentence-transformers makes of them in a process that has no raysed."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import raysed.model.glow
from raysed.config import EncoderConfig, FlowConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.make.targets import teacher_sums
from raysed.model.calibration import Affine, Flow
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.formats import has_own_code
from raysed.model.library import export_model, parity
from raysed.model.load import NativeModel, load_model
from raysed.model.pretrained import load_encoder, load_start, save_encoder
from raysed.store.storage import Storage
from raysed.train.calibrations.whiten import CALIBRATION as WHITEN
from raysed.train.flow_fit import fit_flow

WIDTH, MAX_LENGTH = 16, 12


def vectors(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, sentences: list[str], layers=1) -> np.ndarray:
    return encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH), (layers,))[0]


@dataclass
class Case:
    """An exported model, what was exported, and its vectors by raysed and by sentence-transformers."""

    path: Path
    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    layers: int | str
    expected: np.ndarray
    calibration: Affine | Flow | None = None
    found: np.ndarray | None = None
    facts: dict = field(default_factory=dict)

    def export(self, path: Path) -> None:
        about = {"layers": self.layers, "max_length": MAX_LENGTH, "calibration": self.calibration}
        export_model(self.encoder, self.tokenizer, path, **about)


POOLINGS = [1, 2, 3, "first_last"]
ARCHITECTURES = ["bert", "roberta", "distilbert", "mpnet"]
CALIBRATED = ["affine", "whiten", "flow-paper", "flow-released"]
HEADS = {"wide-head": 24, "narrow-head": 8, "narrow-head-whiten": 8}
NAMES = [f"{name}-{layers}" for name in ARCHITECTURES for layers in POOLINGS] + [*HEADS, *CALIBRATED]

LOADER = r"""
import json, pathlib, socket, sys, warnings
sys.modules["raysed"] = None  # any import of it fails

def refuse(*arguments, **options):
    raise OSError("no network in this test")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import numpy as np
from sentence_transformers import SentenceTransformer

root, names, sentences = json.loads(sys.stdin.read())
root = pathlib.Path(root)
warnings.simplefilter("error")
found, facts = {}, {}
for name in names:
    options = {"trust_remote_code": True} if name.startswith("flow") else {}
    model = SentenceTransformer(str(root / name), device="cpu", **options)
    found[name] = model.encode(sentences, batch_size=16)
    modules = [type(module).__name__ for module in model]
    facts[name] = [modules, model.max_seq_length, model.similarity_fn_name, model.get_embedding_dimension()]
model.save(str(root / "saved-again"))
again = SentenceTransformer(str(root / "saved-again"), device="cpu", trust_remote_code=True)
facts["saved again"] = bool((again.encode(sentences, batch_size=16) == found[names[-1]]).all())
try:
    SentenceTransformer(str(root / names[-1]), device="cpu")
except ValueError as error:
    facts["without trust"] = str(error)
warnings.simplefilter("default")
np.savez(root / "found.npz", **found)
(root / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def make(make_encoder, tiny_encoder_dir) -> Callable[..., tuple[Encoder, PreTrainedTokenizerBase]]:
    return lambda kind="bert": (make_encoder(kind, 4), AutoTokenizer.from_pretrained(tiny_encoder_dir))


@pytest.fixture(scope="module")
def made(tmp_path_factory, make, sentences) -> dict[str, Case]:
    """Every case, exported."""
    root, cases = tmp_path_factory.mktemp("export"), {}
    for name in ARCHITECTURES:
        encoder, tokenizer = make(name)
        for layers in POOLINGS:
            expected = vectors(encoder, tokenizer, sentences, layers)
            cases[f"{name}-{layers}"] = Case(root / f"{name}-{layers}", encoder, tokenizer, layers, expected)
    plain = cases["bert-2"]
    generator = np.random.default_rng(1)
    calibrations = {
        "affine": Affine(generator.normal(size=(WIDTH, WIDTH)), generator.normal(size=WIDTH)),
        "whiten": WHITEN.fit(plain.expected),
        "flow-paper": fit_flow(plain.expected, FlowConfig(batch_size=4, epochs=5), seed=0),
        "flow-released": fit_flow(plain.expected, FlowConfig(variant="released", batch_size=4), seed=0),
    }
    for name, width in HEADS.items():
        encoder, tokenizer = make()
        weight_HD = generator.normal(size=(WIDTH, width)).astype(np.float32)
        encoder.set_head(weight_HD)
        expected = plain.expected @ weight_HD
        calibration = WHITEN.fit(expected) if name.endswith("whiten") else None
        expected = calibration.transform(expected) if calibration else expected
        cases[name] = Case(root / name, encoder, tokenizer, 2, expected, calibration)
    for name, calibration in calibrations.items():
        expected = calibration.transform(plain.expected)
        cases[name] = replace(plain, path=root / name, calibration=calibration, expected=expected)
    for case in cases.values():
        case.export(case.path)
    return cases


@pytest.fixture(scope="module")
def loaded(made, sentences) -> tuple[dict[str, Case], dict, str]:
    """The cases with sentence-transformers' vectors, what else it found, and all that it printed."""
    root = made["bert-1"].path.parent
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "cache"), "OMP_NUM_THREADS": "1"}
    environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    environment["DS_ACCELERATOR"] = "cpu"  # where accelerate is installed, DeepSpeed would look for one and say so
    given = json.dumps([str(root), NAMES, sentences])
    options = {"env": environment, "cwd": root, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", LOADER], input=given, **options)
    assert done.returncode == 0, done.stderr
    facts = json.loads((root / "facts.json").read_text())
    with np.load(root / "found.npz") as found:
        cases = {name: replace(case, found=found[name], facts=facts[name]) for name, case in made.items()}
    return cases, facts, done.stdout + done.stderr


class TestSentenceTransformers:
    @pytest.mark.parametrize("name", NAMES)
    def test_vectors_and_settings_are_the_same(self, loaded, name):
        """Calibrations enlarge rounding errors as much as they enlarge coordinates."""
        case = loaded[0][name]
        scale = 1.0 if case.calibration is None else 3 * np.abs(case.expected).max()
        np.testing.assert_allclose(case.found, case.expected, rtol=0, atol=1e-5 * scale)
        assert case.facts[1:] == [MAX_LENGTH, "cosine", HEADS.get(name, WIDTH)]

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_poolings_differ(self, loaded, name):
        """sentence-transformers takes the last layer, silently, where it does not get the others."""
        found = [loaded[0][f"{name}-{layers}"].found for layers in POOLINGS]
        for i, one in enumerate(found):
            assert all(np.abs(one - other).max() > 0.05 for other in found[i + 1 :])

    def test_calibrations_change_the_vectors(self, loaded):
        plain = loaded[0]["bert-2"].found
        assert all(np.abs(loaded[0][name].found - plain).max() > 0.05 for name in CALIBRATED)

    def test_modules_are_built_in_but_for_the_flow(self, loaded):
        listed = {name: case.facts[0] for name, case in loaded[0].items()}
        assert listed["bert-1"] == ["Transformer", "Pooling"]
        assert listed["bert-first_last"] == ["Transformer", "WeightedLayerPooling", "Pooling"]
        assert listed["wide-head"] == ["Transformer", "WeightedLayerPooling", "Pooling", "Dense"]
        assert listed["narrow-head-whiten"][-2:] == ["Dense", "Dense"]
        assert listed["whiten"][-1] == "Dense" and listed["flow-paper"][-1] == "FlowHead"

    def test_a_flow_needs_trust_says_so_and_survives_being_saved_by_the_library(self, loaded):
        _, facts, printed = loaded
        assert "trust_remote_code=True" in facts["without trust"] and facts["saved again"] is True and printed == ""


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_read_back_by_evaluate(made, sentences, name):
    """Its own pooling and length count, not those that are asked for."""
    model, expected = load_model(str(made[name].path), (1, 3), 5), made[name].expected
    assert isinstance(model, NativeModel)
    np.testing.assert_allclose(model.embed(sentences)[0], expected, rtol=0, atol=1e-4 * max(1, np.abs(expected).max()))


class TestFiles:
    @pytest.mark.parametrize("name", ["mpnet-2", "whiten", "flow-paper"])
    def test_two_exports_are_the_same_bytes(self, made, tmp_path, sentences, name):
        """Though the tokenizer keeps the truncation and padding of its last call."""
        case = made[name]
        case.tokenizer(sentences, padding="max_length", truncation=True, max_length=7)
        case.export(tmp_path / "one")
        case.tokenizer(sentences)
        case.export(tmp_path / "two")
        one, two = ({p.relative_to(d): p for p in d.rglob("*") if p.is_file()} for d in tmp_path.iterdir())
        assert set(one) == set(two) and len(one) >= 7
        assert all(one[place].read_bytes() == two[place].read_bytes() for place in one)

    def test_listing(self, made):
        path = made["flow-paper"].path
        found = {str(p.relative_to(path)) for p in path.rglob("*.*") if p.is_file()}
        own = {"modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "glow.py"}
        modules = {f"1_WeightedLayerPooling/{name}" for name in ("config.json", "model.safetensors")}
        modules |= {f"3_FlowHead/{name}" for name in ("config.json", "model.safetensors")} | {"2_Pooling/config.json"}
        assert found == own | modules | {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
        tokenizer = json.loads((path / "tokenizer_config.json").read_text())
        assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast", "releases with an ONNX backend know no other"

    def test_arguments_stay_as_they_are(self, make, tmp_path):
        encoder, tokenizer = make()
        limit, before = tokenizer.model_max_length, {k: v.clone() for k, v in encoder.state_dict().items()}
        export_model(encoder, tokenizer, tmp_path, layers=2, max_length=5, calibration=None)
        assert tokenizer.model_max_length == limit and not encoder.transformer.config.output_hidden_states
        assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())

    def test_code_is_the_packages_own_and_stands_alone(self, made):
        code = (made["flow-paper"].path / "glow.py").read_text()
        assert code == Path(raysed.model.glow.__file__).read_text()
        tree = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in tree}
        assert not {name.split(".")[0] for name in names} - (sys.stdlib_module_names | {"torch", "safetensors"})
        assert not any((made["bert-2"].path).glob("*.py"))

    def test_a_flow_stays_initialised_and_computes_in_its_own_precision(self, made):
        tensors = load_file(made["flow-paper"].path / "3_FlowHead" / "model.safetensors")
        assert tensors["initialized"].item() is True
        head = raysed.model.glow.FlowHead(Flow(8))
        features = head({"sentence_embedding": torch.ones(2, 8, dtype=torch.float16)})
        assert features["sentence_embedding"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("bert-1", "model.safetensors"),
        ("bert-2", "1_WeightedLayerPooling/model.safetensors"),
        ("affine", "3_Dense/model.safetensors"),
        ("flow-paper", "3_FlowHead/model.safetensors"),
    ],
)
def test_parity_is_small_and_sees_a_changed_weight(made, tmp_path, sentences, name, place):
    case = made[name]
    case.export(tmp_path)
    assert parity(tmp_path, sentences, case.expected) < 1e-5
    tensors = load_file(tmp_path / place)
    changed = next(key for key, value in tensors.items() if value.is_floating_point() and "pooler" not in key)
    tensors[changed].view(-1)[0] += 0.5
    save_file(tensors, tmp_path / place, metadata={"format": "pt"})
    assert parity(tmp_path, sentences, case.expected) > 1e-3


OWN_CODE = """
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
"""


class TestOwnCode:
    """An encoder that came with code of its own keeps it as an artefact of a run and as an exported model."""

    @pytest.fixture
    def stored(self, make, tmp_path, monkeypatch) -> Storage:
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        base, storage = tmp_path / "base", Storage(str(tmp_path / "runs"), "run")
        save_encoder(*make(), base, MAX_LENGTH)
        described = json.loads((base / "config.json").read_text())
        described |= {"model_type": "own", "architectures": ["OwnModel"]}
        described["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
        (base / "config.json").write_text(json.dumps(described))
        (base / "own.py").write_text(OWN_CODE)
        loaded, own = load_encoder(EncoderConfig(path=str(base), max_length=MAX_LENGTH, trust_remote_code=True))
        storage.commit("member", lambda path: save_encoder(loaded, own, path), {})
        return storage

    def test_it_runs_where_it_is_trusted(self, stored, tmp_path, sentences):
        encoder, tokenizer = load_start(EncoderConfig(trust_remote_code=True), stored.fetch("member"))
        assert type(encoder.transformer).__name__ == "OwnModel"
        export_model(encoder, tokenizer, tmp_path / "model", layers=1, max_length=MAX_LENGTH, calibration=None)
        expected = vectors(encoder, tokenizer, sentences)
        assert (tmp_path / "model" / "own.py").exists() and has_own_code(tmp_path / "model")
        assert parity(tmp_path / "model", sentences, expected) < 1e-5
        teachers = [stored.fetch("member")] * 2
        sums = teacher_sums([teachers], None, trust_remote_code=True)
        np.testing.assert_allclose(sums(tokenize(tokenizer, sentences, MAX_LENGTH))[0], 2 * expected, atol=1e-5)

    def test_it_does_not_run_elsewhere(self, stored, monkeypatch):
        monkeypatch.setattr("builtins.input", lambda *_: "n")
        with pytest.raises(ValueError, match="trust_remote_code"):
            load_start(EncoderConfig(), stored.fetch("member"))


@pytest.mark.parametrize(
    ("layers", "calibration", "message"),
    [
        (5, None, "5 layers cannot be pooled: the encoder has 4"),
        (1, Flow(8), "width 8 does not fit embeddings of width 16"),
    ],
)
def test_what_does_not_fit_is_refused(make, tmp_path, layers, calibration, message):
    with pytest.raises(UserError, match=message):
        export_model(*make(), tmp_path, layers=layers, max_length=9, calibration=calibration)
