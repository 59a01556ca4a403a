"""Tasks of the mteb library, made on the spot: nothing is fetched."""

import pytest

from raysed import bundled
from raysed.config import TaskConfig
from raysed.data.graded import load_task
from raysed.errors import UserError
from raysed.model.load import load_model
from raysed.score.leaderboard import load_mteb, score_mteb
from raysed.score.tasks import Evaluation

PAIRS = 40


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb", reason="needs mteb, of the extra test")


@pytest.fixture(scope="module")
def everyday(mteb):
    import datasets
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    class Everyday(AbsTaskSTS):
        metadata = TaskMetadata(
            name="Everyday",
            description="the bundled pairs",
            dataset={"path": "nobody/nowhere", "revision": "1"},
            type="STS",
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
            eval_splits=["test"],
        )

        def load_data(self, **options):
            score, first, second = zip(*bundled.pairs("test")[:PAIRS])
            columns = {"score": score, "sentence1": first, "sentence2": second}
            self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
            self.data_loaded = True

    return Everyday()


def test_a_model_scores_as_it_does_here(everyday, monkeypatch, mteb):
    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [everyday])
    tasks = load_mteb(["Everyday"])
    model = load_model("bundled:encoder")
    whole = load_task("t", TaskConfig(source="bundled:test"))
    (first, second, gold), *_ = whole.subsets.values()
    whole.subsets["all"] = first[:PAIRS], second[:PAIRS], gold[:PAIRS]
    evaluation = Evaluation([whole])
    expected = evaluation.score(model.embed(evaluation.sentences)[0])["t"]["spearman"]
    assert score_mteb(model, tasks, "bundled:encoder") == {"Everyday": pytest.approx(expected, abs=1e-3)}


def test_a_task_that_is_not_there_is_refused(mteb):
    with pytest.raises(UserError, match=r"--mteb NoSuchTask: the mteb library .* has no such task"):
        load_mteb(["NoSuchTask"])


def test_without_a_network_one_sentence_says_so(everyday, monkeypatch, mteb):
    def fetch(**options):
        raise ConnectionError("Couldn't reach 'nobody/nowhere' on the Hub")

    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [everyday])
    monkeypatch.setattr(everyday, "load_data", fetch)
    with pytest.raises(UserError, match=r"--mteb Everyday: mteb cannot load its data .* hub: .*Couldn't reach"):
        load_mteb(["Everyday"])
