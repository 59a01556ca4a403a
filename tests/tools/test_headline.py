"""`make headline` the public way, with stand-ins for the hub: the same files as those that lie in ../shared/data."""

import importlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMIT = re.compile(r"/[0-9a-f]{40}/")
MARKED = "label,qtext,atext\n"
FILES = {
    "OnWN.test.tsv": "4.4\tOne  cat.\tA cat.\n1\tA dog.\tIt rains.\n",
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
        if "OnWN" in source.get("urls", ()):
            source["urls"] = {"OnWN": source["urls"]["OnWN"]}
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


def test_zero_shot_text_holds_no_scored_text(headline, fetched, tmp_path):
    directory, _ = fetched
    pools = headline.write_pools(directory, tmp_path / "text")
    domain, zero = (pools[name].read_text().splitlines() for name in (headline.DOMAIN, headline.ZERO_SHOT))
    assert {"A man of the town did.", "fly to test", "fly to train", "Best SVN client?"} <= set(domain)
    left_out = {"A man of the town did.", "He, they say, didn't make it.", "In a far and old town."}
    assert set(domain) - set(zero) == left_out | {t for t in domain if "fly" in t or "LINQ" in t or "SVN" in t}


def test_the_config_of_a_row_is_valid_and_has_as_many_updates_for_either_text(headline, tmp_path):
    settings = headline.load(headline.CONFIG)["settings"]
    teachers = {name: tmp_path / name for name in headline.TEACHERS[headline.ALL]}
    updates = set()
    for arm in headline.ARMS:
        path = headline.write_config(settings, tmp_path, teachers[headline.MINILM], tmp_path / "c.yaml", arm.text)
        overrides = arm.overrides(headline.load_config(path), teachers, tmp_path / "pool.txt")
        config = headline.load_config(path, overrides)
        assert config.sed.learners == arm.seeds and config.encoder.path == str(teachers[headline.MINILM])
        assert config.teachers[0].path == str(teachers[headline.MPNET])
        updates.add(round(config.corpus.sentences * config.sed.epochs))
    assert updates == {135_000}
