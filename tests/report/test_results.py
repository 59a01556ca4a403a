"""What a report is made of, beside scores."""

import importlib.metadata
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

import raysed
from raysed.config import CorpusConfig, EncoderConfig
from raysed.context import Context
from raysed.errors import UserError
from raysed.made import Made
from raysed.make.text import sentence_table
from raysed.plan.results import EvaluatedModel
from raysed.report import results
from raysed.report.results import RunResults, versions
from raysed.store.files import Watched
from raysed.store.storage import Storage


@pytest.mark.parametrize(("count", "least"), [(19, 2), (40, 40), (1500, 1000), (5001, 1000)])
def test_a_model_is_looked_at_on_many_sentences_wherever_the_corpus_is_cut(tmp_path, tiny_encoder_dir, count, least):
    """Its last row group may have a single sentence; of a corpus of few, the tasks' sentences are taken."""
    text = tmp_path / "corpus.txt"
    text.write_text("".join(f"the old cat sat near the house number {number}\n" for number in range(count)))
    inputs = {"encoder": EncoderConfig(path=str(tiny_encoder_dir), max_length=16), "start": None}
    storage = Storage(str(tmp_path), "run")
    settings = {"corpus": CorpusConfig(source=str(text)), "seed": 0}
    storage.commit(
        "corpus", lambda path: sentence_table(path, inputs, settings, Context()), {}, {"report": {"kept": count}}
    )
    job = SimpleNamespace(needs_corpus=True, evaluation=SimpleNamespace(sentences=["a cat", "a dog"]))
    for seed in range(10):
        job.config = SimpleNamespace(seed=seed)
        found = RunResults(job, storage, None).sample_sentences()
        assert len(found) == len(set(found)) == least
        assert set(found) <= {*text.read_text().splitlines(), "a cat", "a dog"}


@pytest.mark.parametrize("weights", [None, Made("encoder/start"), Made("ct/members/00")])
def test_a_model_without_weights_of_the_run_is_refused_if_the_encoder_has_changed(monkeypatch, weights):
    """One with weights of its own needs the encoder no more."""
    monkeypatch.setattr(results, "load_start", lambda encoder, place: ("encoder", "tokenizer"))
    monkeypatch.setattr(results, "NativeModel", lambda *given, **named: given[:2])
    watched = {"encoder": [Watched("the encoder", lambda: "new", "old")]}
    config = SimpleNamespace(encoder=EncoderConfig(), resources=SimpleNamespace(encode_token_budget=1))
    storage = SimpleNamespace(fetch=lambda name: name)
    ensured: list[Made] = []
    run = RunResults(SimpleNamespace(config=config, watched=watched), storage, None, ensure=ensured.append)
    with nullcontext() if weights else pytest.raises(UserError, match="the encoder changed while the run"):
        assert run.load(EvaluatedModel("base", "base", 0, Made("base/embeddings/00"), (), weights)) == (
            "encoder",
            "tokenizer",
        )


def test_versions_are_known_where_raysed_came_with_a_job_and_is_not_installed(monkeypatch):
    def version(name: str) -> str:
        if name == "raysed":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert versions()["raysed"] == raysed.__version__
