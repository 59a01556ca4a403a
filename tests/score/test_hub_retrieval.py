"""Retrieval tasks of the hub, as local clones: what MTEB and NanoBEIR publish, written with `datasets`."""

import pytest
import yaml

from raysed.config import TaskConfig
from raysed.errors import UserError
from raysed.score.tasks import load_any_task, tasks_of

datasets = pytest.importorskip("datasets")
TEXTS = {"_id": ["d1", "d2", "d3"], "title": ["", "Sun", ""], "text": ["Rain falls.", "It is hot.", "Snow lies."]}
QUERIES = {"_id": ["q1", "q2"], "text": ["Is it wet?", "Is it warm?"]}
JUDGED = {"query-id": ["q1", "q2", "q2"], "corpus-id": ["d1", "d2", "d3"]}
SCORES = {"score": [2, 1, 0]}
MTEB = {
    "corpus": {"corpus": TEXTS},
    "queries": {"queries": QUERIES},
    "default": {"test": JUDGED | SCORES, "dev": {**JUDGED, "corpus-id": ["d3", "d1", "d3"]}},
}
NANO = {"corpus": {"train": TEXTS}, "queries": {"train": QUERIES}, "qrels": {"train": JUDGED}}


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Writes a dataset's clone; returns its directory."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(content):
        folder, configs = tmp_path / "clone", []
        for name, splits in content.items():
            files = [{"split": split, "path": f"{name}/{split}-*.parquet"} for split in splits]
            configs.append({"config_name": name, "data_files": files})
            for split, columns in splits.items():
                (folder / name).mkdir(parents=True, exist_ok=True)
                table = datasets.Dataset.from_dict(columns)
                table.to_parquet(folder / name / f"{split}-00000-of-00001.parquet")
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs}, sort_keys=False)}---\n# It\n")
        return str(folder)

    return write


def german(content):
    return {f"de-{name}": splits for name, splits in content.items()} | {"fr-corpus": {"train": TEXTS}}


@pytest.mark.parametrize(
    ("content", "settings", "gains"),
    [
        (MTEB, {}, [{0: 2.0}, {1: 1.0}]),
        (MTEB, {"split": "dev"}, [{2: 1.0}, {0: 1.0, 2: 1.0}]),
        (NANO, {}, [{0: 1.0}, {1: 1.0, 2: 1.0}]),
        (NANO, {"split": "train"}, [{0: 1.0}, {1: 1.0, 2: 1.0}]),
        (german(MTEB), {"config_name": "de"}, [{0: 2.0}, {1: 1.0}]),
    ],
    ids=["MTEB", "a split", "NanoBEIR", "its split", "a language"],
)
def test_configurations_hold_documents_queries_and_judgements(clone, content, settings, gains):
    task = load_any_task("t", TaskConfig(source=clone(content), **settings))
    assert task.kind == "retrieval" and task.gains == gains
    assert (task.queries, task.documents) == (QUERIES["text"], ["Rain falls.", "Sun It is hot.", "Snow lies."])


def test_a_command_takes_one_by_its_name(clone):
    (task,) = tasks_of([clone(NANO)]).values()
    assert task.kind == "retrieval"


def test_judgements_of_another_dataset(clone, tmp_path):
    source = clone({name: NANO[name] for name in ("corpus", "queries")})
    (tmp_path / "judged.tsv").write_text("query-id\tcorpus-id\nq1\td3\n")
    assert load_any_task("t", TaskConfig(source=source, qrels=str(tmp_path / "judged.tsv"))).gains == [{2: 1.0}]
    lacks = r"^evaluation.tasks.t.qrels: \S+ has no configuration qrels or default; it has corpus, queries; or set "
    with pytest.raises(UserError, match=lacks):
        load_any_task("t", TaskConfig(source=source))


@pytest.mark.parametrize(
    ("content", "split", "named", "known"),
    [
        (MTEB, "train", "name 'default', split 'train'", r"\['test', 'dev'\]"),
        ({**MTEB, "default": {"test": JUDGED}}, "dev", "name 'default', split 'dev'", r"\['test'\]"),
        (
            {**NANO, "qrels": {"dev": JUDGED, "train": JUDGED}},
            None,
            "name 'qrels', split 'test'",
            r"\['dev', 'train'\]",
        ),
    ],
)
def test_a_split_that_judgements_lack_is_refused(clone, content, split, named, known):
    with pytest.raises(UserError, match=f"^evaluation.tasks.t.qrels: .*{named}.*{known}"):
        load_any_task("t", TaskConfig(source=clone(content), split=split))
