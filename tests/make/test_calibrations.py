"""Calibrations as artefacts: what is fitted on which text, and what is written."""

import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModel

from raysed.config import CalibrationConfig, CorpusConfig, EncoderConfig, FlowConfig, derive_seed
from raysed.context import Context
from raysed.data.graded import StsTask
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.tokens import Tokenizer, TokenTable, tokenize
from raysed.errors import UserError
from raysed.made import Made, Step
from raysed.make import scores
from raysed.make.inputs import Sentences
from raysed.make.scores import draw, load_embeddings
from raysed.model.calibration import Affine, load_calibration
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder
from raysed.score.kinds.pairs import Pairs
from raysed.score.tasks import DevTask, Evaluation, mean_embeddings
from raysed.store.storage import Storage
from raysed.train.calibration import fit_calibration
from raysed.train.flow_fit import distinct_pairs, fit_flow


def embeddings(rows=300, width=12, seed=0):
    rng = np.random.default_rng(seed)
    scales_D = np.geomspace(0.05, 5, width)
    x_ND = (rng.normal(size=(rows, width)) * scales_D) @ np.linalg.qr(rng.normal(size=(width, width)))[0]
    return (x_ND + 3 * rng.normal(size=width)).astype(np.float32)


def close(actual, expected, atol=1e-4):
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=0)


LAYERS = (2, "first_last")


def calibrate(tmp_path, evaluation, stages, x=None, flow=None, natsv_k=10, seed=5, name="fitted", **inputs):
    """Returns the storage, and the embeddings by pooling."""
    storage = Storage(str(tmp_path), "run")
    x = x or {layers: embeddings(len(evaluation.sentences), 24, i) for i, layers in enumerate(LAYERS)}
    storage.commit(
        "base/embeddings/00",
        lambda path: [np.save(path / f"layers-{layers}.npy", x_UD) for layers, x_UD in x.items()],
        {},
    )
    own = Evaluation([evaluation.tasks["dev/a"]])
    rows = np.array([evaluation.sentences.index(sentence) for sentence in own.sentences])
    given = {
        "embeddings": Made("base/embeddings/00"),
        "sentences": Sentences(evaluation, None),
        "dev": DevTask(own, None, rows, 2),
        "encoder": EncoderConfig(),
        "model": None,
        "poolings": list(x),
        **inputs,
    }
    settings = {
        "stages": stages,
        "flow": FlowConfig(**{"fit_on": "tasks", **(flow or {})}),
        "calibration": CalibrationConfig(natsv_k=natsv_k),
        "seed": seed,
        "run_seed": 0,
        "layers": list(x),
        "main": 0,
    }
    Step(name, "", scores.calibration, {"x": 1}, settings, given).run(storage, Context())
    return storage, x


def fitted(storage, layers, name="fitted"):
    return load_embeddings(storage.fetch(name), layers)


class TestArtefacts:
    """What is written for the embeddings of two tasks that share a sentence."""

    @pytest.fixture
    def evaluation(self):
        gold = np.random.default_rng(0).uniform(0, 5, 60)
        words = [f"sentence {i}" for i in range(139)]
        first = StsTask("dev/a", {"all": (words[:40], words[40:80], gold[:40])})
        second = StsTask(
            "b", {"x": (words[79:99], words[99:119], gold[:20]), "y": (words[99:119], words[119:], gold[20:40])}
        )
        return Evaluation([Pairs(first), Pairs(second)])

    @pytest.mark.parametrize("fit_tasks", [None, ["b"]])
    def test_all_tasks_together_or_some(self, tmp_path, evaluation, fit_tasks):
        flow = {"batch_size": 8, "fit_tasks": fit_tasks}
        storage, x = calibrate(tmp_path, evaluation, ["flow"], flow=flow)
        for layers in LAYERS:
            rows = evaluation.pair_rows(fit_tasks).reshape(-1)
            flow = fit_flow(x[layers][rows], FlowConfig(batch_size=8), 5)
            expected = flow.transform(x[layers])
            np.testing.assert_array_equal(fitted(storage, layers), expected)
            saved = load_calibration(storage.fetch("fitted") / f"layers-{layers}")
            np.testing.assert_array_equal(saved.transform(x[layers]), expected)

    def test_per_task_fits_and_scores_each_on_its_own(self, tmp_path, evaluation):
        """As if the other task were not there; a name with a slash is a name like any other."""
        stages = ["flow"]
        storage, x = calibrate(tmp_path, evaluation, stages, flow={"per_task": True, "batch_size": 8})
        found = fitted(storage, "first_last")
        assert set(found) == {"dev/a", "b"}
        scores = evaluation.score(found).metrics
        assert list(scores) == ["dev/a", "b"]
        for task in scores:
            rows = evaluation.pair_rows([task])
            x_ND = x["first_last"][rows.reshape(-1)]
            calibration = fit_calibration(stages, x_ND, FlowConfig(batch_size=8), None, derive_seed(5, task))
            alone = Evaluation([evaluation.tasks[task]])
            order = [evaluation.sentences.index(sentence) for sentence in alone.sentences]
            expected = alone.score(calibration.transform(x["first_last"][order])).metrics[task]
            assert scores[task]["spearman"] == pytest.approx(expected["spearman"], abs=1e-6)
            assert scores[task]["pearson"] == pytest.approx(expected["pearson"], abs=1e-3)
        mean = mean_embeddings([found, {task: 3 * x_UD for task, x_UD in found.items()}])
        np.testing.assert_allclose(mean["b"], 2 * found["b"], rtol=1e-6)
        np.testing.assert_array_equal(evaluation.of_task(found, "b"), found["b"])

    @pytest.mark.parametrize(("stages", "per_task"), [(["natsv"], True), (["sn", "natsv"], False)])
    def test_k_is_chosen_on_the_dev_task_and_recorded(self, tmp_path, evaluation, stages, per_task):
        """The dev task's own fit chooses where each task has one; the k is then that of all."""
        storage, x = calibrate(tmp_path, evaluation, stages, flow={"per_task": per_task}, natsv_k="dev")
        chosen = storage.entry("fitted").meta["natsv_k"]
        assert set(chosen) == {"2", "first_last"}
        for layers in LAYERS:
            fit_on = x[layers][evaluation.pair_rows(["dev/a"] if per_task else None).reshape(-1)]
            scores = []
            for k in range(1, 21):
                z_UD = fit_calibration(stages, fit_on, FlowConfig(), k, 0).transform(x[layers])
                scores.append(round(evaluation.score(z_UD).metrics["dev/a"]["spearman"], 6))
            assert chosen[str(layers)] == 1 + int(np.argmax(scores))
            found = evaluation.score(fitted(storage, layers)).metrics["dev/a"]["spearman"]
            assert found == pytest.approx(max(scores), abs=1e-6)
        assert len(set(scores)) > 3, "the choice makes a difference"

    def test_a_fit_that_fails_at_the_main_pooling_is_told_and_commits_nothing(self, tmp_path, evaluation):
        reason = "calibration.natsv_k is 24, but with 160 embeddings of width 24 it must be 1 to 23"
        with pytest.raises(UserError, match=reason):
            calibrate(tmp_path, evaluation, ["natsv"], natsv_k=24)
        assert Storage(str(tmp_path), "run").entry("fitted") is None

    def test_one_pass_over_the_text_serves_all_calibrations_of_a_model(self, tmp_path, evaluation, monkeypatch):
        """Three flows and a whitening on the drawn sentences of a corpus, each as if it were fitted alone."""
        flow = {"fit_on": "corpus", "fit_sentences": 8, "batch_size": 2, "epochs": 2}
        encoder, tokenizer = load_encoder(EncoderConfig())
        texts = [f"{noun} {verb}" for noun in ("a man", "a dog", "she") for verb in ("runs", "sits", "is here", "eats")]
        corpus = tokenize(tokenizer, texts, 75)
        monkeypatch.setattr(scores, "read_tokens", lambda path: corpus)
        passes = []
        monkeypatch.setattr(scores, "encode", lambda *a: passes.append(len(a[1])) or encode(*a))
        x = dict(zip((1, 2), encode(encoder, tokenize(tokenizer, evaluation.sentences, 75), (1, 2))))
        fits = [(["flow"], 0), (["flow"], 1), (["flow"], 2), (["whiten"], 0)]
        for number, (stages, seed) in enumerate(fits):
            storage, _ = calibrate(
                tmp_path, evaluation, stages, x, flow, seed=seed, name=f"fitted/{number}", text=tmp_path
            )
        assert passes == [8], "the drawn sentences, once"
        calibrate(tmp_path, evaluation, ["whiten"], x, {**flow, "fit_sentences": 6}, name="fitted/other", text=tmp_path)
        assert passes == [8, 6], "another run in this process draws others"
        rows = np.sort(np.random.default_rng(derive_seed(0, "calibration")).choice(12, 8, replace=False))
        for layers, x_ND in zip((1, 2), encode(encoder, corpus.take(rows), (1, 2))):
            for number, (stages, seed) in enumerate(fits):
                expected = fit_calibration(stages, x_ND, FlowConfig(**flow), None, seed).transform(x[layers])
                close(fitted(storage, layers, f"fitted/{number}"), expected, 1e-3)

    def test_a_text_that_was_edited_and_one_of_another_encoder_are_embedded_again(
        self, tmp_path, evaluation, tiny_encoder_dir
    ):
        """In the same process, as in a notebook."""
        path, found = shutil.copytree(tiny_encoder_dir, tmp_path / "encoder"), []
        given = {"encoder": EncoderConfig(path=str(path), max_length=12)}
        given["text"] = CorpusConfig(source=str(tmp_path / "mine.txt"))
        x = {layers: embeddings(len(evaluation.sentences), 16) for layers in LAYERS}
        for number, words in enumerate(("a red bird sang .", "the old house of it .", "the old house of it .")):
            if number == 2:
                model = AutoModel.from_pretrained(path)
                for weight in model.parameters():
                    weight.data *= 1.5
                model.save_pretrained(path)
            (tmp_path / "mine.txt").write_text("".join(f"{words} {'on ' * count}\n" for count in range(8)))
            made, _ = calibrate(tmp_path / str(number), evaluation, ["sn"], x, {"fit_on": "mine.txt"}, **given)
            found.append(fitted(made, 2))
        assert min(np.abs(found[i] - found[i + 1]).max() for i in range(2)) > 1e-3


class TestDropout:
    """What flows are fitted on with `flow.dropout`."""

    TEXTS = tuple(f"{noun} {verb}" for noun in ("a man", "a dog", "she", "birds") for verb in ("run", "sit", "eat"))

    @pytest.fixture
    def fits(self, monkeypatch):
        """Returns the rows, epochs and seed of each fit."""
        found = []

        def record(stages, x_ND, flow, k, seed):
            found.append((x_ND, flow.epochs, seed))
            return Affine(np.eye(x_ND.shape[1]), np.zeros(x_ND.shape[1]))

        monkeypatch.setattr(scores, "fit_calibration", record)
        return found

    def run(self, tmp_path, monkeypatch, rate=None, seed=5, name="fitted", **flow):
        """Fits on a task or pairs of these texts; returns their embeddings without dropout, side by side."""
        model, tokenizer = load_encoder(EncoderConfig())
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout) and rate is not None:
                module.p = rate
        monkeypatch.setattr(scores, "load_start", lambda *arguments: (model, tokenizer))
        first, second = list(self.TEXTS[:6]), list(self.TEXTS[6:])
        evaluation = Evaluation([Pairs(StsTask("dev/a", {"all": (first, second, np.linspace(0, 5, 6))}))])
        tokens, pairs = tokenize(tokenizer, evaluation.sentences, 75), PairRows(first, second, np.zeros(6, np.int64))
        storage = Storage(str(tmp_path), "run")
        storage.commit("pairs/nli", lambda path: write_pairs(pairs, Tokenizer(tokenizer, 75), path), {})
        (x_UD,) = encode(model, tokens, (2,))
        given = {"sentences": Sentences(evaluation, tokens), "text": Made("pairs/nli")}
        flow = {"dropout": True, "batch_size": 2, **flow}
        calibrate(tmp_path, evaluation, ["flow"], {2: x_UD}, flow, seed=seed, name=name, **given)
        return x_UD[evaluation.pair_rows().reshape(-1)]

    @pytest.mark.parametrize(
        ("flow", "copies"),
        [({"fit_on": "tasks"}, 1), ({"fit_on": "nli", "epochs": 2.5}, 3)],
    )
    def test_each_sentence_is_embedded_once_per_epoch_with_masks_of_its_own(
        self, tmp_path, monkeypatch, fits, flow, copies
    ):
        """Partners stay side by side, the epochs are as many as without, and a dropout of nothing changes nothing."""
        plain_ND = self.run(tmp_path, monkeypatch, rate=0.0, name="none", **flow)
        self.run(tmp_path, monkeypatch, **flow)
        for x_ND, epochs, seed in fits:
            assert x_ND.shape == (copies * 12, 192) and epochs * copies == flow.get("epochs", 1) and seed == 5
        (without_ND, *_), (with_ND, *_) = fits
        np.testing.assert_allclose(without_ND, np.tile(plain_ND, (copies, 1)), atol=1e-5)
        differences_N = np.abs(with_ND - without_ND).max(1)
        assert (differences_N > 1e-2).all()
        cosines = (with_ND * without_ND).sum(1) / np.linalg.norm(with_ND, axis=1) / np.linalg.norm(without_ND, axis=1)
        assert (cosines > 0.7).all(), "the same sentences in the same order"
        assert len(np.unique(with_ND.round(4), axis=0)) == len(with_ND)

    def test_masks_depend_on_the_seed_and_on_nothing_else(self, tmp_path, monkeypatch, fits):
        for number, seed in enumerate((5, 5, 6)):
            torch.manual_seed(number)
            self.run(tmp_path, monkeypatch, seed=seed, name=f"fitted/{number}")
        first, again, other = (x_ND for x_ND, *_ in fits)
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-2


class TestDrawing:
    @pytest.mark.parametrize(("pairs", "epochs"), [(100, 0.15), (1000, 0.5), (40, 0.01), (7, 0.9), (1, 0.5)])
    def test_draws_the_pairs_that_the_fit_uses_and_no_more(self, pairs, epochs):
        """Both sentences of a pair stay together, no pair comes twice, and the number of updates is that of all."""
        table = TokenTable.from_lists([[i] for i in range(2 * pairs + 1)])
        config = FlowConfig(epochs=epochs, batch_size=8)
        drawn, settings = draw(table, config, seed=3)
        first, second = drawn.ids[: len(drawn) // 2 * 2].reshape(-1, 2).T
        assert (second == first + 1).all() and (first % 2 == 0).all() and len(set(first)) == len(first)
        assert len(first) == distinct_pairs(pairs, config)
        updates = [[], []]
        for steps, fit, count in ((updates[0], config, 2 * pairs), (updates[1], settings, len(drawn))):
            fit_flow(embeddings(count, width=4), fit, 0, lambda step, _, steps=steps: steps.append(step))
        assert updates[0] == updates[1]
        again, other = (draw(table, config, seed)[0].ids for seed in (3, 4))
        np.testing.assert_array_equal(drawn.ids, again)
        assert pairs < 100 or not np.array_equal(drawn.ids, other)

    @pytest.mark.parametrize("epochs", [1, 2.5])
    def test_a_whole_epoch_takes_all(self, epochs):
        table = TokenTable.from_lists([[i] for i in range(9)])
        assert draw(table, FlowConfig(epochs=epochs, batch_size=3), 0)[0] is table
