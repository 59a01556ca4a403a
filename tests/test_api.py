"""raysed from Python: which settings a call makes, and what it gives back."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hub_server import hub_server

import raysed
from raysed import api, bundled
from raysed.cli import code_of
from raysed.config import find_config, load_config, make_config
from raysed.data.corpus import CorpusReport, query_chunks
from raysed.errors import UserError
from raysed.model.teacher import load_teacher
from raysed.model.teachers.python import given_objects
from raysed.plan.consistency import check_settings
from raysed.store.storage import Storage

PAIRS = [("A cat.", "A pet.", 3.0), ("A cat.", "It rains.", 0.0)]


def by_words(sentences):
    words = ("a", "man", "woman", "is", "the")
    return np.array([[word in text.lower().split() for word in words] for text in sentences])


@pytest.fixture
def distillation(monkeypatch, tmp_path):
    """In a directory of its own, whose `mine.tsv` has graded pairs."""
    monkeypatch.chdir(tmp_path)
    Path("mine.tsv").write_text("0.5\tA cat sleeps.\tA dog runs.\n4.5\tIt rains.\tRain falls.\n")
    return api.distillation


@pytest.mark.parametrize(
    ("teachers", "learner", "layers", "expected"),
    [
        (["members", "v.parquet", {"path": "B", "prompt": "query: "}], None, None, ("B", "half", {})),
        (["v.parquet"], None, None, ("bundled:encoder", None, {})),
        (["A"], None, [0, 5], ("A", [0, 5], {})),
        (["A"], "A", None, ("A", None, {})),
        (["A"], "A", 2, ("A", 2, {})),
        (["A"], "B", 2, ("B", None, {"num_hidden_layers": 2})),
        (["v.parquet"], None, 2, ("bundled:encoder", None, {"num_hidden_layers": 2})),
    ],
)
def test_half_of_the_first_teacher_learns_unless_told_otherwise(distillation, teachers, learner, layers, expected):
    config = distillation(teachers, "corpus.txt", learner, keep_layers=layers)
    assert (config.encoder.path, config.encoder.keep_layers, config.encoder.model_kwargs) == expected


def test_texts_are_read_as_far_as_all_models_can_and_what_is_set_stays(distillation, tiny_encoder_dir):
    """The tiny encoder has positions for 40 tokens."""
    plain = str(tiny_encoder_dir)
    for teacher, settings, expected in (
        (plain, {}, (40, 40, 2000)),
        ({"path": plain, "max_length": 12}, {}, (40, 12, 2000)),
        (plain, {"encoder": {"max_length": 20}}, (20, 40, 2000)),
        (plain, {"corpus": {"passage_characters": 300}}, (40, 40, 300)),
        (plain, {"corpus": {"passage_characters": None}}, (40, 40, None)),
        ("bundled:encoder", {}, (96, 96, 2000)),
    ):
        config = distillation([teacher, "members"], "c.txt", "bundled:encoder", settings=settings)
        found = config.encoder.max_length, config.teachers[0].max_length, config.corpus.passage_characters
        assert found == expected
    beside_a_file = distillation([plain, "v.parquet"], "c.txt")
    assert beside_a_file.encoder.max_length == 40 and beside_a_file.corpus.passage_characters is None


def test_a_call_makes_the_settings_of_a_config(distillation):
    """Those of `distill.yaml`, with the call's own in their place."""
    called = distillation(
        ["A", {"path": "B", "prompt": "q: "}],
        "corpus.txt",
        keep_layers=2,
        dev="mine.tsv",
        tasks={"other": "mine.tsv"},
        run="mine",
        storage="there",
        settings={"sed": {"batch_size": 16}, "combination": {"weights": [1, 2]}},
    )
    task = {"source": "mine.tsv", "kind": "pairs", "score_range": None, "aggregation": "all"}
    written = load_config(find_config("distill")).model_dump(exclude={"teachers", "encoder", "evaluation"})
    written["sed"] |= {"batch_size": 16, "checkpoint": "best_on_dev"}
    expected = make_config(
        {
            **written,
            "run": "mine",
            "storage": "there",
            "teachers": [{"path": "A"}, {"path": "B", "prompt": "q: "}],
            "encoder": {"path": "A", "pool_layers": 1, "keep_layers": 2},
            "corpus": {"source": ["corpus.txt"]},
            "combination": {"weights": [1, 2]},
            "evaluation": {"tasks": {"mine": task, "other": task}, "dev": "mine", "pool_layers": [1]},
        }
    )
    assert called.model_dump() == expected.model_dump()


def test_an_object_teaches_in_this_process(distillation, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = distillation([by_words, "B"], "c.txt", settings={"resources": {"gpu": False}})
    check_settings(config)
    first, second = config.teachers
    assert first.path.startswith("python:") and (first.title, second.title) == ("by_words", "B")
    assert config.encoder.path == "B" and config.resources.engine == "local" and config.resources.gpu is False
    assert distillation(["B"], "c.txt").resources.engine == "auto"
    refusal = r"^teachers: by_words is an object .*; set resources\.engine to lo"
    with pytest.raises(UserError, match=refusal):
        check_settings(distillation([by_words], "c.txt", settings={"resources": {"engine": "ray"}}))
    monkeypatch.setenv("RAY_ADDRESS", "ray://there")
    with pytest.raises(UserError, match=refusal):
        check_settings(distillation([by_words], "c.txt"))


def test_objects_are_written_where_the_run_is(distillation, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = distillation(["A"], ["One sentence.", "Another one."], storage="~/runs")
    assert Path(config.corpus.source[0]).match(f"{tmp_path}/runs/given-A-half/given/*/sentences.parquet")


def test_a_refused_call_leaves_the_text_of_the_one_at_work(distillation):
    """Its sentences, queries and tasks."""
    config = distillation("A", ["One sentence."], queries=["One query?"], dev=PAIRS)
    sources = [*config.corpus.source, config.corpus.queries, config.evaluation.tasks["dev"].source]
    before = [Path(source).read_bytes() for source in sources]
    options = {"queries": ["Another query?"], "dev": PAIRS[:1], "settings": {"encoder": {"max_length": 32}}}
    with Storage("runs", "given-A-half").lock(), pytest.raises(UserError, match="in use by another process"):
        api.distill("A", ["Another sentence."], **options)
    assert [Path(source).read_bytes() for source in sources] == before


def test_one_run_at_a_time_and_nobody_touches_its_teachers(distillation, monkeypatch):
    """Two would share a random state; what is evaluated meanwhile leaves the run's own as it is."""
    pairs = {"mine": [*PAIRS, ("A dog.", "The dog.", 2.0)]}

    def at_work(config, *options):
        monkeypatch.setattr("raysed.pipeline.run", lambda *arguments: None)
        state = torch.get_rng_state()
        with ThreadPoolExecutor() as threads:
            for refused in (
                threads.submit(api.distill, by_words, ["It rains."], run="other"),
                threads.submit(api.run, "quickstart"),
            ):
                with pytest.raises(UserError, match=r"^another run is active in this process; wait for it, or use "):
                    refused.result()
            threads.submit(api.evaluate, by_words, pairs).result()
        assert load_teacher(config.teachers[0]).embed(["a man"]).tolist() == [[1, 1, 0, 0, 0]]
        assert torch.equal(torch.get_rng_state(), state)
        raise UserError("it was at work")

    for _ in range(2):
        monkeypatch.setattr("raysed.pipeline.run", at_work)
        with pytest.raises(UserError, match="it was at work"):
            api.distill(by_words, ["It rains.", "A cat."])
    assert not Path("runs/other").exists() and not given_objects


def test_teachers_that_agree_on_the_sample_stay_two(distillation):
    def of_chinese(sentences):
        return by_words(sentences) + np.array([[float("東" in text)] for text in sentences])

    def vectors(*teachers):
        config = distillation([*teachers, by_words], "c.txt")
        return [load_teacher(teacher).embed(["東 a"])[0, 0] for teacher in config.teachers]

    assert vectors(by_words, of_chinese) == [1, 2, 1]
    assert vectors(of_chinese) == [2, 1]
    first, second = (distillation([by_words, of_chinese], "c.txt").teachers for _ in range(2))
    assert first == second and first[0] == distillation(by_words, "c.txt").teachers[0]


def test_nothing_is_written_for_a_run_that_cannot_be_nor_outside_of_a_run(distillation, tmp_path):
    with pytest.raises(UserError, match=r"^setting run: "):
        distillation("A", ["One sentence."], run="../evil")
    for name in ("..", "\x1b[2J", "x" * 300, 5):
        with pytest.raises(UserError, match=r"^evaluation.tasks has the name '.+'; use a short, printable one"):
            distillation("A", tasks={name: PAIRS})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tsv"]
    config = distillation("A", ["One sentence."], tasks={"../../../../evil": PAIRS, "sentences": PAIRS})
    assert config.evaluation.tasks["sentences"].source not in config.corpus.source
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.tsv", "runs"]


def test_a_model_on_remote_storage_has_its_uri_unless_it_was_refused(monkeypatch):
    monkeypatch.setattr(Storage, "read_text", lambda storage, name: None)
    result = api.Result(Storage("s3://bucket/runs?region=eu-west-1", "mine"))
    assert result.path == "s3://bucket/runs/mine/model?region=eu-west-1" and code_of(result) == 0
    result.report["refused"] = {"why": "it is worse"}
    assert result.path is None and code_of(result) == 3


def test_a_static_learner_has_its_own_rate_unless_told_otherwise(distillation):
    def settings(**given):
        return distillation(["A"], "corpus.txt", "A", static=True, settings=given)

    config = settings()
    check_settings(config)
    assert config.encoder.static.width is None and config.encoder.pool_layers == 1
    assert (config.sed.learning_rate, config.sed.batch_size, config.sed.epochs) == (0.01, 256, 3)
    with pytest.raises(UserError, match="keep_layers is for transformers"):
        distillation("A", "corpus.txt", static=True, keep_layers=2)
    config = settings(encoder={"static": {"width": 64}}, sed={"learning_rate": 0.5})
    assert config.encoder.static.width == 64 and (config.sed.learning_rate, config.sed.batch_size) == (0.5, 256)


def test_objects_are_as_good_as_files(distillation):
    """Sentences, the dev task and others; names are those that are given, or those of the files."""
    datasets = pytest.importorskip("datasets")
    config = distillation("A", ["It rains.", "A cat."], dev=PAIRS, tasks=["mine.tsv", PAIRS])
    check_settings(config)
    assert Path(config.corpus.source[0]).match("runs/given-A-half/given/*/sentences.parquet")
    assert list(config.evaluation.tasks) == ["dev", "mine", "task-2"] and config.evaluation.dev == "dev"
    config = distillation("A", "c.txt", dev="mine.tsv", tasks=["mine.tsv", PAIRS])
    assert list(config.evaluation.tasks) == ["mine", "task-2"], "one that chooses is not one that does not"
    config = distillation("A", "c.txt", tasks={"first": PAIRS, "other": Path("mine.tsv")})
    assert (config.evaluation.dev, config.evaluation.report_tasks()) == (None, ["first", "other"])
    for dev, kept in ((PAIRS, "best_on_dev"), (None, "best_on_held_out")):
        assert distillation("A", "c.txt", dev=dev).sed.checkpoint == kept
    rows = datasets.Dataset.from_dict({"sentence1": ["A cat."], "sentence2": ["A pet."], "score": [3.0]})
    for tasks in (PAIRS, rows):
        assert list(distillation("A", "c.txt", tasks=tasks).evaluation.tasks) == ["task-1"]
    for given, sentence in (
        ({"tasks": [[Path("mine.tsv"), Path("mine.tsv")]]}, "task task-1: a list of files is not one task"),
        ({"dev": PAIRS, "tasks": {"dev": PAIRS}}, "two tasks are called dev"),
        ({"corpus": ["It rains."], "storage": "s3://bucket/runs"}, r"^corpus: storage is a URI"),
        ({"teachers": 7}, "^teachers: int is not a teacher"),
    ):
        with pytest.raises(UserError, match=sentence):
            distillation(**{"teachers": "A", "corpus": "c.txt", **given})
    for tasks in (np.array(["mine.tsv", "other.tsv"]), iter(["mine.tsv", "other.tsv"])):
        Path("other.tsv").write_bytes(Path("mine.tsv").read_bytes())
        assert list(distillation("A", "c.txt", tasks=tasks).evaluation.tasks) == ["mine", "other"]


def test_queries_of_your_own(distillation):
    config = distillation("A", "c.txt", queries=["why is it?", "how is it?"])
    check_settings(config)
    assert Path(config.corpus.queries).match("runs/c-A-half/given/*/queries.parquet")
    assert list(query_chunks(config.corpus, CorpusReport())) == [["why is it?", "how is it?"]]
    assert config.corpus.source == ["c.txt"] and distillation("A", "c.txt").corpus.queries is None
    with pytest.raises(UserError, match="queries: pass one file"):
        distillation("A", "c.txt", queries=[Path("mine.tsv"), Path("mine.tsv")])


def test_evaluate_takes_objects():
    pairs = [("A man sleeps.", "The man sleeps.", 5), ("A man sleeps.", "It rains.", 0), ("A cat.", "A dog.", 2)]
    dev = [("A boy eats.", "The boy eats.", 4), ("It snows.", "A man sings.", 1), ("A bird.", "A boat.", 0)]
    found = api.evaluate([by_words, "bundled:encoder"], {"mine": pairs}, dev=dev)
    scores = found.scores
    assert list(scores) == ["word overlap", "TF-IDF", "by_words", "bundled"]
    assert scores["by_words"]["mean"] == scores["by_words"]["mine"] == found["models"][0]["metrics"]["mine"]["spearman"]
    assert str(scores).split()[:3] == ["mean", "dev", "mine"] and "\nby_words  " in str(scores)
    assert scores.to_pandas().loc["by_words", "mine"] == scores["by_words"]["mine"]
    assert "gain over the best teacher" in str(found)


@pytest.mark.parametrize(
    "arguments",
    [
        {"learner": "A", "keep_layers": 2},  # a number spreads the layers of a teacher
        {"storage": "x"},
        {"dev": "d.tsv", "tasks": ["t.tsv", "d.tsv"]},
        {"queries": "q.txt"},
        {"settings": {"sts": {"train": ["p.tsv"]}, "teachers": [{"path": "A"}, {"path": "B"}], "storage": "y"}},
    ],
)
def test_paths_are_objects_or_text(distillation, tmp_path, arguments):
    def as_objects(given):
        if isinstance(given, dict):
            return {name: as_objects(value) for name, value in given.items()}
        if isinstance(given, list):
            return [as_objects(value) for value in given]
        return Path(given) if isinstance(given, str) else given

    for name in ("d.tsv", "t.tsv"):
        (tmp_path / name).write_text("a\tb\t1\n")
    expected = distillation(["A"], ["c.txt"], **arguments)
    assert distillation([Path("A")], [Path("c.txt")], **as_objects(arguments)) == expected


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: raysed.distill("A", "c.txt", settings="abc"), "settings: it must be a mapping"),
        (lambda: raysed.distill("A", "c.txt", "A", keep_layers="2"), "keep_layers is '2'; pass a number of layers"),
        (lambda: raysed.distill("A", "c.txt", "A", keep_layers=1.5), "setting encoder.keep_layers: .*1.5"),
        (lambda: raysed.distill("A", "c.txt", learner=""), "setting encoder.path: it is empty"),
        (lambda: raysed.distill("A", "c.txt", storage=""), "setting storage: it is empty"),
        (lambda: raysed.distill("", "c.txt", "B"), "setting teachers.0.path: it is empty"),
        (lambda: raysed.check(5), "a config is a mapping of settings, .* not of type int"),
        (lambda: raysed.check({"ct": {"steps": "x"}}), "setting ct.steps: "),
        (lambda: raysed.check("no-such"), "--config no-such: there is no file"),
        (lambda: raysed.run(None), "a config is a mapping of settings, .* not of type NoneType"),
        (lambda: raysed.evaluate([], "bundled:generated-dev"), "models: none given"),
        (lambda: raysed.evaluate(by_words, {}), "tasks: none given; pass "),
    ],
)
def test_mistakes_in_arguments_are_sentences(tmp_path, monkeypatch, call, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{said}"):
        call()


def test_keys_of_scores_say_what_a_model_is(tmp_path):
    expected = {
        ("base", "base"): "base/start",
        ("base-whiten", "base"): "base-whiten/start",
        ("teachers", "member"): "teachers/teacher",
        ("teachers", "ensemble"): "teachers/ensemble",
        ("ct", "member"): "ct/member",
        ("teachers-sed", "learner"): "teachers-sed/learner",
    }
    groups = [{"recipe": recipe, "kind": kind} for recipe, kind in [*expected, ("sts", "grid")]]
    summary = [{**group, "task": task, "mean": 50.0} for task in ("mine", "mean") for group in groups]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/report.json").write_text(json.dumps({"summary": summary}))
    scores = api.Result(Storage(str(tmp_path), "mine")).scores
    assert scores == {key: {"mean": 50.0, "mine": 50.0} for key in expected.values()}
    assert all(list(row) == ["mean", "mine"] for row in scores.values())


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_distillation_from_objects_to_a_model(tmp_path, capfd, monkeypatch):
    """Silent, on the local engine; the result is a loaded model, tables, and what the hub gets."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pairs = [(first, second, score) for score, first, second in bundled.pairs("dev")]
    options = {
        "teachers": sentence_transformers.SentenceTransformer(str(bundled.ENCODER), device="cpu"),
        "corpus": iter(bundled.corpus()[:300]),
        "learner": "bundled:encoder",
        "keep_layers": 1,
        "dev": pairs[:100],
        "tasks": {"mine": pairs[100:200]},
        "storage": str(tmp_path),
        "settings": {
            "sed": {"epochs": 1, "precision": "fp32"},
            "export": {"recipe": "teachers-sed", "allow_worse": True},
            "resources": {"encode_precision": "fp32"},
        },
    }
    result = raysed.distill(**options)
    assert tuple(capfd.readouterr()) == ("", "")
    assert result.model.encode(["It rains."]).shape == (1, 192)
    learner = result.scores["teachers-sed/learner"]
    assert 0 < learner["mine"] == learner["mean"] < 100
    assert "teachers-sed/learner" in str(result) and "## " in str(result.report)
    assert set(result.report.to_pandas()["task"]) >= {"dev", "mine"}
    evaluated = raysed.evaluate(result.model, {"mine": pairs[100:200]})
    assert evaluated["models"][0]["metrics"]["mine"]["spearman"] == pytest.approx(learner["mine"], abs=0.05)

    with hub_server() as hub:
        assert result.push_to_hub("me/mine", private=True) == f"{hub.url}/me/mine/commit/1"
    assert hub.repositories == {"me/mine": {"private": True}}
    assert {"model.safetensors", "modules.json"} <= hub.files.keys() and b"spearman_cosine" in hub.files["README.md"]

    again = raysed.distill(**options | {"corpus": bundled.corpus()[:300]}, verbose=True)
    assert "nothing to do" in capfd.readouterr().out and again.scores == result.scores
