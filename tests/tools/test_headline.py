"""`make headline` the public way, with stand-ins for the hub: the same files as those that lie in ../shared/data."""

import doctest
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from raysed.config import TeacherConfig, load_config, make_config
from raysed.model.teacher import load_teacher
from raysed.score.intervals import interval, resample
from raysed.score.tasks import Evaluation
from raysed.train.stages.sed import STAGE

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared/data"
ARCHIVED = ROOT / "benchmarks/archive/2026-11-30-headline.npz"
COMMIT = re.compile(r"/[0-9a-f]{40}/")
MARKED = "label,qtext,atext\n"
FILES = {
    "OnWN.test.tsv": "4.4\tOne  cat.\tA cat.\n1\tA dog.\tIt rains.\n",
    "images.test.tsv": "\tA dog runs.\tA dog has no score.\n2\tA dog runs.\tA cat runs.\n",
    "label_StackOverflow.txt": "18\n3\n",
    "title_StackOverflow.txt": "How do I page with  LINQ?\nBest SVN client?\n",
    "data_full.json": json.dumps({s: [[f"fly to {s}", "travel"]] for s in ("train", "val", "test")}),
    "train.csv": f'{MARKED}1,Who made it ?,"He , they say , did n\'t make it ."\n0,Where ?,In a far and old town .\n',
    "dev.csv": f"{MARKED}1,Who made it ?,A man of the town did .\n",
    "ck12v0-dev.csv": "htext,mtext\nDo the cells of plants divide ?,LOUD WORDS OF NO USE HERE\n",
    "mc160.dev.statements.tsv": 'x\ty\tIt was a sunny day.\\newlineThe cat ran "home" at noon. Too short.\n',
    "msr-para-train.tsv": "\ufeffQuality\ta\tb\tc\td\n1\t2\t3\tHe said it in the town.\tShe said so.\n",
}


@pytest.fixture
def headline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("headline")


@pytest.fixture
def headline_data(headline):
    return importlib.import_module("headline_data")


@pytest.fixture
def fetched(headline, monkeypatch, tmp_path):
    """The directory that the public way writes, and every call to the hub."""
    calls = []

    def load_dataset(path: str, **options):
        calls.append((path, options))
        if path == "text":
            return [{"text": FILES.get(options["data_files"].rpartition("/")[2], "")}]
        if options.get("streaming"):
            return iter([{"text": "The town  lies on a river."}, {"text": "Its first mayor was a cook."}] * 10_000)
        return [{"score": 5.0, "sentence1": f"A {options['split']} pair.", "sentence2": "Two."}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    content = headline.load(headline.CONFIG)
    for source in content["data"].values():
        if source["as"] == "graded pairs" and "urls" in source:
            source["urls"] = {name: url for name, url in source["urls"].items() if f"{name}.test.tsv" in FILES}
    headline.gather(content["data"], tmp_path)
    first = list(calls)
    assert headline.gather(content["data"], tmp_path) == tmp_path and calls == first, (
        "what is there is not fetched again"
    )
    return tmp_path, calls


def test_every_source_has_a_revision_and_says_where_it_was_seen(headline):
    content = headline.load(headline.CONFIG)
    for name, source in (content["teachers"] | content["data"]).items():
        assert source["seen"], name
        if "hub" in source:
            assert re.fullmatch("[0-9a-f]{40}", source["revision"]), name
    urls = re.findall(r"https://raw\.[^\s'\"]+", json.dumps(content["data"]))
    assert len(urls) > 20 and all(COMMIT.search(url) for url in urls)


def test_the_public_way_writes_each_file_in_its_layout(headline, fetched):
    directory, calls = fetched
    content = headline.load(headline.CONFIG)
    assert all((directory / name).exists() for name in content["data"])
    assert (directory / "sts/sts12.tsv").read_text().splitlines()[1] == "OnWN\t4.4\tOne cat.\tA cat."
    assert (directory / "sts/stsb-dev.tsv").read_text().splitlines()[1] == "all\t5.0\tA validation pair.\tTwo."
    titles = (directory / "classes/stackoverflow.tsv").read_text().splitlines()
    assert titles == ["label\ttext", "18\tHow do I page with LINQ?", "3\tBest SVN client?"]
    assert (directory / "classes/clinc-val.tsv").read_text().splitlines()[1] == "travel\tfly to val"
    task = directory / "retrieval/trecqa-dev"
    assert [json.loads(line)["text"] for line in (task / "queries.jsonl").read_text().splitlines()] == ["Who made it ?"]
    assert (task / "qrels/test.tsv").read_text().splitlines()[1:] == ["q0\td0\t1", "q0\td2\t1"]
    english = (directory / "corpus/english-38k.txt").read_text().splitlines()
    assert {"He, they say, didn't make it.", 'The cat ran "home" at noon.'} < set(english) and len(english) == 7
    assert len((directory / "corpus/wikipedia-12k.txt").read_text().splitlines()) == 11914
    hub = {path: options for path, options in calls if path != "text"}
    assert set(hub) == {"mteb/stsbenchmark-sts", "princeton-nlp/datasets-for-simcse"}
    assert all(re.fullmatch("[0-9a-f]{40}", options["revision"]) for options in hub.values())
    assert set(headline.differing(content["data"], directory)) == set(content["data"]), "made up, so never measured"


def test_inductive_and_general_text_hold_no_scored_text(headline, fetched):
    directory, _ = fetched
    pools = headline.write_pools(directory, headline.write_sample(directory, directory), directory / "text")
    own, unseen, general = (
        set(pools[name].read_text().splitlines())
        for name in (headline.TRANSDUCTIVE, headline.INDUCTIVE, headline.GENERAL)
    )
    scored = {"A man of the town did.", "He, they say, didn't make it.", "In a far and old town.", "fly to test"}
    titles = {"Best SVN client?", "How do I page with LINQ?"}
    assert scored | titles | {"fly to train", "The town lies on a river."} <= own
    assert own - unseen == scored | titles, "of two titles, both are scored"
    assert unseen - general == {"fly to train", "fly to val"}


def test_two_texts_are_one_whatever_brackets_treebanks_write_and_few_other_words_make_near_copies(headline_data):
    assert doctest.testmod(headline_data).failed == 0
    scored = ["A -LSB- very -RSB- old man -LRB- of the town -RRB- came by ."]
    assert headline_data.key(scored[0]) == headline_data.key("A [very] old man (of the town) came by.")
    near, other = "A very old man of the town ran by.", "A very old man of some town ran by."  # 8 of 10, 7 of 11 words
    assert headline_data.near_copies([near, other], scored) == {near}


@pytest.mark.more
@pytest.mark.skipif(not SHARED.exists(), reason="needs the real texts in ../shared/data")
def test_real_general_text_holds_no_scored_text_of_trec(headline, headline_data, tmp_path):
    pools = headline.write_pools(SHARED, headline.write_sample(SHARED, tmp_path), tmp_path / "text")
    plain = str.maketrans("", "", "()[]{}\"'`.,;:?!- ")

    def bare(text: str) -> str:  # compared in another way than by `key`
        return re.sub(r"-[LR][RSC]B-|``|''", "", text).casefold().translate(plain)

    asked = {bare(text) for text in headline_data.texts(SHARED / headline.SCORED["trecqa"])}
    for name, expected in ((headline.TRANSDUCTIVE, 5000), (headline.INDUCTIVE, 0), (headline.GENERAL, 0)):
        found = sum(bare(text) in asked for text in pools[name].read_text().splitlines())
        assert found >= expected if expected else found == 0, name


def test_a_draw_has_as_many_sentences_of_the_pool_as_asked_for_and_teachers_embed_them_once(headline, tmp_path):
    pool = tmp_path / "pool.txt"
    pool.write_text("".join(f"Sentence {k}.\n" for k in range(50)))
    for seed in (0, 1):
        headline.draw(pool, 30, seed, tmp_path / str(seed))
    drawn = [(tmp_path / str(seed) / "text.txt").read_text().splitlines() for seed in (0, 1)]
    assert all(len(set(lines)) == 30 for lines in drawn) and set(drawn[0]) != set(drawn[1])
    asked = []

    def embed(_: Path, texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.array([[float(text[9:-1]), 1.0] for text in texts], np.float32)

    for seed in (0, 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vectors.embed", embed)
            headline.write_teachers({"one": tmp_path / "model"}, tmp_path / str(seed), tmp_path / "vectors")
    assert sorted(asked) == sorted(set(drawn[0]) | set(drawn[1]))
    teacher = load_teacher(TeacherConfig(path=str(tmp_path / "1/one.parquet")))
    assert teacher.embed(drawn[1])[:, 0].tolist() == [float(text[9:-1]) for text in drawn[1]]


def test_the_config_of_a_row_is_valid_and_has_as_many_updates_for_either_text(headline, tmp_path):
    settings, updates = headline.load(headline.CONFIG)["settings"], set()
    for arm in headline.ARMS:
        path = headline.write_config(settings, tmp_path, tmp_path / headline.MINILM, tmp_path, f"{arm.text}-1")
        config = headline.load_config(path, arm.overrides(headline.load_config(path), tmp_path / "drawn", 1))
        assert config.sed.learners == 1 and config.seed == 1 and config.run == f"headline-{arm.text}-1"
        assert config.teachers[0].path == str(tmp_path / "drawn" / f"{headline.MPNET}.parquet")
        updates.add(round(config.corpus.sentences * config.sed.epochs))
    assert updates == {135_000}


def test_controls_differ_in_their_teachers_alone_and_take_703_steps(headline, tmp_path):
    controls = importlib.import_module("controls")
    settings, taught, others = headline.load(headline.CONFIG)["settings"], set(), []
    path = headline.write_config(settings, tmp_path, tmp_path / headline.MINILM, tmp_path, "controls")
    shorter = load_config(path, [controls.shorter(load_config(path))])
    for arm in controls.ARMS:
        config = load_config(path, arm.overrides(shorter, tmp_path / "drawn", 1))
        assert STAGE.steps(config.sed, config.corpus.sentences) == controls.UPDATES
        taught.add(tuple(Path(teacher.path).stem for teacher in config.teachers))
        others.append(config.model_copy(update={"teachers": []}))
    assert len(taught) == len(controls.ARMS) and all(other == others[0] for other in others)
    assert taught >= {headline.TEACHERS[headline.ALL], (headline.MPNET, headline.MINILM)}


def test_the_vectors_of_relations_follow_the_sentences_of_a_run(headline, monkeypatch, tmp_path):
    """Runs of other seeds read the text in another order."""
    relations = importlib.import_module("relations")
    (tmp_path / "text.txt").write_text("".join(f"Sentence {k}.\n" for k in range(300)))
    monkeypatch.setenv(relations.SEED, "1")
    order, x_ND = relations.in_order(tmp_path), np.random.default_rng(0).normal(size=(300, 8))
    assert sorted(order) == list(range(300)) and (order != np.arange(300)).any()
    relations.check_rows(x_ND[order], x_ND[order])
    with pytest.raises(RuntimeError, match="other sentences or orders"):
        relations.check_rows(x_ND, x_ND[order])


def test_a_learner_that_is_trained_again_is_scored_again(headline, monkeypatch, tmp_path):
    trained, bench = [], object.__new__(headline.Bench)
    bench.storage, bench.found = tmp_path, {"rows": {}, "speed": {}}

    def train(config: Path, overrides: list[str], storage: Path, to: Path) -> None:
        to.mkdir(parents=True, exist_ok=True)
        trained.append(overrides)

    monkeypatch.setattr(headline, "train", train)
    (bench.results / "outcomes").mkdir(parents=True)
    were_scored = []
    for overrides in (["seed=0"], ["seed=0"], ["seed=0", "sed.epochs=2"]):
        path = bench.train_once("a row", 0, tmp_path / "run.yaml", overrides)
        outcomes = bench.results / "outcomes" / headline.outcomes_file([path])
        were_scored.append(outcomes.exists())
        outcomes.touch()
    assert were_scored == [False, True, False]
    path.rmdir()
    bench.train_once("a row", 0, tmp_path / "run.yaml", overrides)
    assert trained == [["seed=0"], ["seed=0", "sed.epochs=2"], ["seed=0", "sed.epochs=2"]]


def test_an_interval_follows_from_the_written_outcomes_alone(headline, tmp_path):
    random, tasks = np.random.default_rng(0), {}
    for name in (*headline.KINDS["pairs"], "sts15 all"):
        rows = [f"{'ab'[k % 2]}\t{k % 6}\t{name} {k}.\tOther {k}." for k in range(60)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *sorted(rows)]) + "\n")
        tasks[name] = str(tmp_path / f"{name}.tsv")
    for name in headline.KINDS["classes"]:
        rows = [f"{k % 3}\t{name} {k}." for k in range(60)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
        tasks[name] = {"source": str(tmp_path / f"{name}.tsv"), "kind": "neighbours"}
    (tmp_path / "trecqa/qrels").mkdir(parents=True)
    for file, of in (("corpus", "Answer"), ("queries", "Question")):
        lines = [json.dumps({"_id": f"{file[0]}{k}", "text": f"{of} {k}"}) for k in range(40)]
        (tmp_path / f"trecqa/{file}.jsonl").write_text("\n".join(lines) + "\n")
    relevant = [f"q{k}\tc{k}\t1" for k in range(40)]
    (tmp_path / "trecqa/qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *relevant]) + "\n")
    tasks["trecqa"] = str(tmp_path / "trecqa")
    evaluation = Evaluation.load(make_config({"evaluation": {"tasks": tasks, "dev": None}}).evaluation)
    outcomes = {
        name: [evaluation.score(random.normal(size=(len(evaluation.sentences), 8))).outcomes for _ in range(seeds)]
        for name, seeds in (("one", 1), ("other", 2))
    }
    headline.write_outcomes(outcomes, evaluation, tmp_path / "outcomes.npz")
    kept = dict(np.load(tmp_path / "outcomes.npz"))
    for name, task in evaluation.tasks.items():
        score, strata = task.metrics(outcomes["one"][0][name])[task.main], kept[f"{name}/strata"]
        values = kept[f"{name}/one/0"]
        if task.kind == "pairs":
            parts = [np.flatnonzero(strata == each) for each in np.unique(strata)]
            gold = kept[f"{name}/gold"]
            assert len(parts) == 2
            assert np.mean([100 * spearmanr(values[at], gold[at])[0] for at in parts]) == pytest.approx(score, abs=1e-3)
        else:
            assert 100 * values.mean() == pytest.approx(score, abs=1e-3)
    right = kept["clinc-test/one/0"]
    drawn_R = right[random.integers(60, size=(4000, 60))].mean(1) * 100
    expected = interval(resample(evaluation, {"one": outcomes["one"]}, ["clinc-test"])["one"])
    assert interval(drawn_R) == pytest.approx(expected, abs=2)
    assert kept["trecqa/other/1"].dtype == np.float32


def test_an_interval_of_the_readme_follows_from_the_archive(headline):
    """By a bootstrap of its own, without data: what the learner gains over MiniLM, on the mean of the kinds."""
    with np.load(ARCHIVED) as kept:
        arrays = dict(kept)
    random, of_kind = np.random.default_rng(0), {task: len(of) for of in headline.KINDS.values() for task in of}
    strata = {task: arrays[f"{task}/strata"] for task in of_kind}
    parts = {task: [np.flatnonzero(of == each) for each in np.unique(of[of >= 0])] for task, of in strata.items()}

    def gains(pick) -> np.ndarray:
        """Return the gain of each seed on some items."""
        found_S = np.zeros(3)
        for task, count in of_kind.items():
            picked, gold = [pick(part) for part in parts[task]], arrays.get(f"{task}/gold")

            def score(model: str, task=task, picked=picked, gold=gold) -> float:
                x_P = arrays[f"{task}/{model}"]
                return np.mean([x_P[at].mean() if gold is None else spearmanr(x_P[at], gold[at])[0] for at in picked])

            of_seeds = [score(f"{headline.BEST}/{seed}") - score(f"{headline.MINILM}/0") for seed in range(3)]
            found_S += 100 * np.array(of_seeds) / count / len(headline.KINDS)
        return found_S

    drawn_RS = np.array([gains(lambda part: random.choice(part, len(part))) for _ in range(150)])
    other_R = np.array([random.choice(drawn_S, 3).mean() for drawn_S in drawn_RS])  # of seeds
    drawn_R = drawn_RS.mean(1) + np.sqrt(3 / 2) * (other_R - drawn_RS.mean(1))
    page = ARCHIVED.with_suffix(".md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| {headline.BEST}, less {headline.MINILM} "))
    mean, *ends = map(float, re.findall(r"[-+][0-9.]+", row.split("|")[2]))
    assert gains(lambda part: part).mean() == pytest.approx(mean, abs=0.051)
    assert interval(drawn_R) == pytest.approx(ends, abs=0.3)
