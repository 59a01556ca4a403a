"""What is known of a run before it starts: which inputs it has, and when they count as changed."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from started_jobs import described, run_here

from raysed.config import dump_config, load_config, make_config, with_absolute_paths
from raysed.data.tokens import pack, tokenize
from raysed.errors import UserError
from raysed.model.encoding import encode
from raysed.model.pretrained import load_checkpoint, load_encoder, write_checkpoint
from raysed.model.shape import shape_of
from raysed.model.teacher import default_learner
from raysed.plan.check import check
from raysed.store.files import Watched
from raysed.store.hub import model_identity
from raysed.store.storage import Storage

PAIRS = "subset\tscore\tsentence1\tsentence2\nall\t1\ta cat\ta dog\nall\t2\ta\tb\nall\t4\ta bird\tthe bird\n"


@pytest.fixture
def inputs(tmp_path, tiny_encoder_dir, monkeypatch) -> Path:
    """A working directory with an encoder, a corpus, a task and other text, and settings that name them relatively."""
    shutil.copytree(tiny_encoder_dir, tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("A cat sat.\nA dog ran.\n")
    (tmp_path / "other.txt").write_text("A bird sang.\n")
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def config(**changes):
    settings = {
        "encoder": {"path": "encoder", "max_length": 16},
        "corpus": {"source": "corpus.txt"},
        "evaluation": {"tasks": {"mine": "pairs.tsv"}, "dev": "mine", "pool_layers": [1, 2]},
    }
    return make_config({**settings, **changes})


def changed(before: dict, after: dict) -> set[str]:
    assert set(before) == set(after)
    return {key for key in before if before[key] != after[key]}


@pytest.mark.parametrize("encoder", ["encoder", "~/encoder"])
@pytest.mark.parametrize("source", ["corpus.txt", ["corpus.txt", "*.txt", "./texts/**", "corpus", "~/corpus.txt"]])
def test_settings_that_a_run_leaves_behind_say_the_same_elsewhere(inputs, monkeypatch, source, encoder):
    """Also those that workers elsewhere get. What is bundled, on a hub or missing stays as it is."""
    for folder in ("texts/deep", "corpus", "elsewhere"):
        (inputs / folder).mkdir(parents=True)
        (inputs / folder / "more.txt").write_text("A fish swam.\n")
    encoder = {"path": encoder, "max_length": 16}
    job = check(config(encoder=encoder, corpus={"source": source}, flow={"fit_on": "other.txt"}))
    assert job.config.encoder.path == str(inputs / "encoder")
    (inputs / "config.yaml").write_text(dump_config(job.config))
    monkeypatch.chdir(inputs / "elsewhere")
    found = load_config(inputs / "config.yaml")
    again = check(found)
    assert found == job.config == again.config and again.inputs == job.inputs
    untouched = config(corpus={"source": ["bundled:generated-text", "s3://bucket/*.txt", "owner/name", "gone/*.txt"]})
    assert with_absolute_paths(untouched).corpus == untouched.corpus


def test_what_calibrations_are_fitted_on_is_not_mistaken_for_a_directory(inputs):
    for words in ("tasks", "corpus"):
        (inputs / words).mkdir()
        assert check(config(flow={"fit_on": words})).config.flow.fit_on == words


def test_inputs_are_known_by_content_and_not_by_place(inputs):
    """Encoder and tasks; the corpus, which may be large, by name, size and time."""
    before = check(config()).inputs
    assert check(config()).inputs == before
    (inputs / "moved").mkdir()
    for name in ("encoder", "pairs.tsv"):
        shutil.move(inputs / name, inputs / "moved" / name)
    tasks = {"tasks": {"mine": "moved/pairs.tsv"}, "dev": "mine", "pool_layers": [1]}
    moved = config(encoder={"path": "moved/encoder", "max_length": 16}, evaluation=tasks)
    assert check(moved).inputs == before


@pytest.mark.parametrize("keep", [3, [0, 1, 2]])
def test_an_encoder_of_which_all_layers_are_kept_is_not_cut(inputs, keep):
    whole, kept = (
        check(config(encoder={"path": "encoder", "max_length": 16, **of})) for of in ({}, {"keep_layers": keep})
    )
    assert kept.depends == whole.depends and not kept.config.encoder.is_cut


def test_a_changed_input_is_the_only_one_that_changed(inputs):
    settings = config(flow={"fit_on": "other.txt"})
    before = check(settings).inputs
    keys = {"encoder/model.safetensors": "encoder", "corpus.txt": "corpus", "other.txt": "fit_on", "pairs.tsv": "tasks"}
    for path, key in keys.items():
        (inputs / path).write_bytes((inputs / path).read_bytes()[:-1] + b"!\n")
        after = check(settings).inputs
        assert changed(before, after) == {key}
        before = after
    assert changed(before, check(settings.model_copy(update={"seed": 1})).inputs) == {"corpus"}, "another draw"


def test_a_hub_model_is_known_by_its_commit(inputs):
    """Found in the cache without a network; `revision` and the like reach it too."""
    old, new = "a" * 40, "b" * 40
    cached = inputs / "hub/models--somebody--model"
    for commit in (old, new):
        shutil.copytree(inputs / "encoder", cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(old)
    options = {"path": "somebody/model", "max_length": 16, "model_kwargs": {"cache_dir": str(inputs / "hub")}}
    found = check(config(encoder=options)).inputs["encoder"]
    assert (found["id"], found["commit"]) == ("somebody/model", old)
    options["model_kwargs"]["revision"] = new
    assert check(config(encoder=options)).inputs["encoder"]["commit"] == new
    watched = Watched("encoder.path", lambda: model_identity(config(encoder=options).encoder), found)
    with pytest.raises(UserError, match=r"^encoder\.path changed while the run was using it"):  # as on another node
        watched.check()
    options["model_kwargs"]["cache_dir"] = str(inputs / "empty")
    watched.check()  # on a node that has not read it


@pytest.mark.parametrize(
    ("recipes", "fit_on", "needed"),
    [
        (["base-flow"], "tasks", False),
        (["base"], "corpus", False),
        (["base-flow"], "corpus", True),
        (["ct"], "tasks", True),
    ],
)
def test_the_corpus_is_looked_at_only_where_it_is_needed(inputs, recipes, fit_on, needed):
    changes = {"recipes": recipes, "flow": {"fit_on": fit_on}}
    assert check(config(**changes)).needs_corpus == needed
    absent = config(**changes, corpus={"source": "/no/such/file.txt"})
    if needed:
        with pytest.raises(ValueError, match=r"corpus\.source: /no/such/file\.txt does not exist"):
            check(absent)
    else:
        assert check(absent).inputs["corpus"] is None


STATIC = {
    "recipes": ["base"],
    "encoder": {"path": "encoder", "max_length": 16, "pool_layers": 1, "static": {"width": 8}},
    "evaluation": {"tasks": {"mine": "pairs.tsv"}, "dev": "mine", "pool_layers": [1]},
}
DISTILLED = {"recipes": ["teachers-sed"], "teachers": [{"path": "teacher", "max_length": 16}]}
EMBEDDED = {"recipes": ["teachers-sed"], "teachers": ["vectors.parquet"]}
READ_LATER = [
    ("corpus.txt", "corpus", "", {"recipes": ["ct"]}),
    ("corpus.txt", "encoder/start", "", STATIC),
    ("texts/new.txt", "corpus", "", {"recipes": ["ct"], "corpus": {"source": "texts"}}),
    ("queries.txt", "corpus", "", {**DISTILLED, "corpus": {"source": "corpus.txt", "queries": "queries.txt"}}),
    (
        "other.txt",
        "base-sn/calibrations/00",
        "base/embeddings/00",
        {"recipes": ["base-sn"], "flow": {"fit_on": "other.txt"}},
    ),
    ("encoder/model.safetensors", "base/embeddings/00", "", {"recipes": ["base"]}),
    ("encoder/vocab.txt", "pairs/nli", "", {"recipes": ["nli"], "nli": {"train": "nli.tsv"}}),
    ("encoder/model.safetensors", "ct/members/00", "base/embeddings/00", {"recipes": ["ct"]}),
    ("encoder/model.safetensors", "teachers-sed/learners/00", "teachers-sed/targets", DISTILLED),
    ("teacher/model.safetensors", "teachers/embeddings/00", "", DISTILLED),
    ("teacher/2_Dense/pytorch_model.bin", "teachers-sed/targets", "teachers/embeddings/00", DISTILLED),
    ("vectors.parquet", "teachers-sed/targets", "corpus", EMBEDDED),
]
"""A file, the artefact that is made from it, one that is made before it changes, and settings."""


@pytest.fixture
def begun(inputs):
    """Begins a run without Ray; returns a function that makes something with all that it needs, and the storage."""
    sentences = [f"The {colour} {animal} sat." for colour in ("red", "big", "old") for animal in ("cat", "dog", "bird")]
    for name in ("corpus.txt", "other.txt", "queries.txt", "texts/old.txt"):
        (inputs / name).parent.mkdir(exist_ok=True)
        (inputs / name).write_text("\n".join(sentences))
    (inputs / "nli.tsv").write_text("label\tpremise\thypothesis\n" + "neutral\ta cat\ta dog\nentailment\tb\tc\n" * 4)
    shutil.copytree(inputs / "encoder", inputs / "teacher")
    (inputs / "teacher/2_Dense").mkdir()
    (inputs / "teacher/2_Dense/pytorch_model.bin").write_bytes(b"weights")
    vectors = pa.array(np.eye(len(sentences), dtype=np.float32).tolist())
    pq.write_table(pa.table({"sentence": sentences, "embedding": vectors}), inputs / "vectors.parquet")

    def begin(**settings):
        few = {"ct": {"steps": 2}, "members": {"count": 1, "precision": "fp32"}, "sed": {"batch_size": 4, "epochs": 1}}
        given = config(**{**few, "resources": {"engine": "local"}, **settings})
        found, storage = described(given), Storage(str(inputs / "runs"), "run")
        run = run_here(check(given), storage)
        return (lambda name: run.ensure(found.get(name))), storage

    return begin


def changed_on_disk(path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file({name: 1.1 * weights for name, weights in load_file(path).items()}, path, {"format": "pt"})
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.set_column(1, "embedding", pa.array(table["embedding"].to_pylist()[::-1])), path)
    else:
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\nA fish swam.\n")


@pytest.mark.parametrize(("file", "artefact", "before", "settings"), READ_LATER)
def test_what_was_read_is_what_was_looked_at(inputs, begun, file, artefact, before, settings):
    """A file that changes while a run is at work ends it before anything made of it counts."""
    make, storage = begun(**settings)
    make(before)
    known = storage.names()
    changed_on_disk(inputs / file)
    with pytest.raises(
        UserError, match=rf"{file.split('/')[0]}\S* changed while the run was using it; start the run ag"
    ):
        make(artefact)
    made = set(storage.names()) - set(known)
    assert artefact not in made and not any(name.startswith(("ct/m", "teachers/rows")) for name in made)


@pytest.mark.parametrize(("file", "artefact", "before", "settings"), [READ_LATER[row] for row in (0, 5, 9, 11)])
def test_a_copy_in_the_place_of_a_file_is_the_same(inputs, begun, file, artefact, before, settings):
    make, storage = begun(**settings)
    shutil.copy(inputs / file, inputs / "copy")
    (inputs / "copy").replace(inputs / file)
    make(artefact)
    assert artefact in storage.names()


def test_what_was_read_at_first_is_what_is_made_of_it(inputs, begun):
    """Pairs stay in memory."""
    make, storage = begun(recipes=["nli"], nli={"train": "nli.tsv"})
    changed_on_disk(inputs / "nli.tsv")
    make("pairs/nli")
    (found,) = storage.fetch("pairs/nli").glob("*.parquet")
    assert "swam" not in str(pq.read_table(found, columns=["sentence1", "sentence2"]).to_pydict())


def test_a_run_does_not_depend_on_where_it_lies_or_on_machines(inputs):
    before = check(config()).depends
    assert check(config(run="other", storage="/elsewhere", resources={"gpu": False})).depends == before
    assert check(config(members={"count": 3})).depends != before
    assert check(config(resources={"encode_precision": "fp32"})).depends != before
    assert check(config(seed=1)).depends != before


def test_a_learner_is_not_the_model_that_its_own_run_replaces(inputs):
    """Yesterday's model is, in a copy, what today's learner may start from."""
    shutil.copytree(inputs / "encoder", inputs / "runs/today/model")
    again = {"run": "today", "storage": "runs", "encoder": {"path": "runs/today/model", "max_length": 16}}
    with pytest.raises(UserError, match=r"^encoder\.path: .*/runs/today/model' is in this run's own directory.* copy"):
        check(config(**again))
    check(config(**{**again, "run": "tomorrow"}))
    distilled = {**again, "recipes": ["teachers-sed"], "corpus": {"sentences": 300}, "encoder": {"max_length": 16}}
    for setting, models in (
        ("teachers", {"teachers": ["runs/today/model"]}),
        (r"combination\.turn", {"teachers": ["bundled:encoder"], "combination": {"turn": "runs/today/model"}}),
    ):
        with pytest.raises(UserError, match=rf"^{setting}: .*in this run's own directory"):
            check(make_config({**distilled, **models}))


# -- the learner that a teacher gives by default ---------------------------------------------------------------------

SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 32}
SIZES |= {"max_position_embeddings": 42, "initializer_range": 0.3, "pad_token_id": 0}
DECODER = {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "use_cache": True}
LATE = {**SIZES, "pad_token_id": 1}
SMALL = {**SIZES, "embedding_size": 8}
WINDOW = {"sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
ARCHITECTURES = {
    "Bert": SIZES,
    "Roberta": LATE,
    "XLMRoberta": LATE,
    "MPNet": LATE,
    "DistilBert": {"dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 42},
    "Albert": SMALL,
    "Electra": SMALL,
    "DebertaV2": {**SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "ModernBert": {**SIZES, **{f"{name}_token_id": 2 for name in ("cls", "sep", "bos", "eos")}},
    "NomicBert": SIZES,
    "EuroBert": DECODER,
    "Longformer": {**SIZES, "attention_window": [8, 8, 4, 4]},
    "Qwen2": DECODER,
    "Qwen3": DECODER,
    "Gemma3Text": {**DECODER, **WINDOW},
    "Llama": DECODER,
    "Mistral": DECODER,
    "SmolLM3": {**DECODER, "no_rope_layers": [1, 1, 0, 1]},
    "GPT2": {"n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 42},
}


def save_teacher(name: str, tokenizer, path: Path, **settings) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=len(tokenizer) + 1, **settings)
    model = getattr(transformers, f"{name}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def distilling(*teachers: str, **encoder):
    blocks = [{"path": path, "max_length": 16} for path in teachers]
    encoder = {**default_learner(teachers), "max_length": 16, "pool_layers": 1, **encoder}
    tasks = {"tasks": {"mine": "pairs.tsv"}, "dev": "mine", "pool_layers": [1]}
    return config(teachers=blocks, encoder=encoder, recipes=["teachers-sed"], evaluation=tasks)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_half_of_a_teacher_of_any_architecture_learns(inputs, tiny_tokenizer, name):
    """It is checked, trained for an update, saved and loaded."""
    save_teacher(name, tiny_tokenizer, inputs / "teacher", **ARCHITECTURES[name])
    settings = check(distilling("teacher")).config.encoder
    encoder, tokenizer = load_encoder(settings)
    assert encoder.transformer.config.num_hidden_layers == shape_of(settings).layers == 2
    assert not getattr(encoder.transformer.config, "use_cache", False)
    tokens = tokenize(tokenizer, ["the cat sat on a big tree", "she ran"], 16)
    before_ND = encode(encoder, tokens)[0]
    optimizer = torch.optim.SGD(encoder.parameters(), 1e-3)
    encoder(pack(tokens, row_tokens=16)).square().sum().backward()
    optimizer.step()
    found_ND = encode(encoder, tokens)[0]
    write_checkpoint(encoder, tokenizer, inputs / "learner", {}, [])
    np.testing.assert_allclose(encode(load_checkpoint(inputs / "learner"), tokens)[0], found_ND, atol=1e-5)
    assert np.isfinite(found_ND).all() and not np.allclose(found_ND, before_ND, atol=1e-5)


@pytest.mark.parametrize(("asked", "precision"), [("auto", "fp32"), ("bf16", "bf16")])
def test_teachers_are_loaded_in_bf16_wherever_they_run_if_that_is_set(asked, precision):
    """A check or a score in fp32 would need twice their memory."""
    settings = {"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "corpus": {"sentences": 300}}
    config = make_config({**settings, "resources": {"encode_precision": asked}})
    found = described(config)
    on_gpus = [found["teachers/embeddings/00"], found["speeds"]]
    assert all(each.how == "worker" and each.weights() > 10**6 for each in on_gpus), "where there are some"
    steps = [each.step for each in on_gpus]
    assert {step.settings.get("precision", "fp32") for step in steps} == {precision}
    assert [teacher.precision for teacher in check(config).teachers] == [precision]


def test_a_teacher_that_no_learner_can_start_from_is_refused_at_the_start(inputs, tiny_tokenizer):
    """As is another learner, although it is needed only after all teachers have embedded the corpus."""
    model = SentenceTransformer(modules=[StaticEmbedding(tiny_tokenizer.backend_tokenizer, embedding_dim=8)])
    model.save(str(inputs / "static"))
    save_teacher("Albert", tiny_tokenizer, inputs / "groups", **SMALL, num_hidden_groups=2)
    named = r"; name another learner$"
    for teacher, problem in (
        ("static", r"^teachers: .*/static' does not begin with a transformer: .*config\.json" + named),
        ("groups", r"^teachers: the layers of .*/groups' are not one stack, so encoder\.keep_layers cannot .*" + named),
    ):
        with pytest.raises(UserError, match=problem):
            check(distilling(teacher))
        check(distilling(teacher, path="encoder"))
    check(distilling("groups", keep_layers=None))
    save_teacher("ConvBert", tiny_tokenizer, inputs / "padded", **SMALL)
    transformers.CLIPConfig().save_pretrained(inputs / "pictures")
    for learner, problem in (
        ("padded", "ConvBertModel embeds a sentence differently if"),
        ("pictures", ".*/pictures' is not an encoder of text$"),
    ):
        with pytest.raises(UserError, match=rf"^encoder\.path: {problem}"):
            check(distilling("encoder", path=learner, keep_layers=None))


@pytest.mark.parametrize(
    ("old", "sentence"),
    [
        ("bundled:encoder", "bundled embeds in 192 numbers, but the learner in 16; they must be equal$"),
        ("gone", "'gone': neither a directory nor a hub id"),
    ],
)
def test_a_model_to_turn_to_that_cannot_be_searched_is_refused(inputs, old, sentence):
    taught = {"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "combination": {"turn": old}}
    with pytest.raises(UserError, match=f"^combination.turn: {sentence}"):
        check(config(**taught))
