"""Retrieval measures against ir_measures (trec_eval), by random judgements and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.data.graded import StsTask
from raysed.score.kinds import retrieval
from raysed.score.kinds.pairs import Pairs
from raysed.score.kinds.retrieval import MEASURES, Retrieval
from raysed.score.tasks import Evaluation


def random_task(rng, queries=7, documents=40, graded=True, texts=None, lacks=0, **prompts):
    """One whose judgements name `lacks` more documents than there are."""
    texts = texts or [f"document {i}" for i in range(documents)]
    ids = [f"d{i}" for i in rng.permutation(len(texts))]
    gains = []
    for _ in range(queries):
        mine = rng.choice(len(texts) + lacks, rng.integers(1, 15), replace=False).tolist()
        gains.append(dict(zip(mine, rng.integers(1, 4 if graded else 2, len(mine)).astype(float).tolist())))
    return Retrieval("toy", [f"query {i}" for i in range(queries)], texts, ids, gains, **prompts)


def by_trec_eval(task, scores_QN):
    """The same measures, by the library."""
    ir_measures = pytest.importorskip("ir_measures", reason="needs ir_measures, of the extra test")
    from ir_measures import AP, RR, R, nDCG

    qrels, run, ids = [], [], [*task.document_ids, *(f"x{i}" for i in range(99))]
    for q in range(len(task.queries)):
        for row, gain in task.gains[q].items():
            qrels.append(ir_measures.Qrel(f"q{q}", ids[row], int(gain)))
        run += [ir_measures.ScoredDoc(f"q{q}", i, float(s)) for i, s in zip(task.document_ids, scores_QN[q])]
    measures = [nDCG @ 10, RR, AP, R @ 10, R @ 100]  # of RR @ 10 the library has another, with other ties
    found = {measure: [] for measure in measures}
    for one in ir_measures.iter_calc(measures, qrels, run):
        found[one.measure].append(one.value if one.measure != RR or one.value > 0.099 else 0.0)
    return {name: 100 * np.mean(found[measure]) for name, measure in zip(MEASURES, measures)}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([3, 60, 300]), st.sampled_from([0, 5, 90]))
def test_measures_are_those_of_trec_eval(seed, with_ties, documents, lacks):
    """Judged documents that are not there count as never found."""
    rng = np.random.default_rng(seed)
    task = random_task(rng, documents=max(documents, 15), lacks=lacks)
    scores_QN = rng.normal(size=(7, len(task.documents))).astype(np.float32)
    scores_QN = scores_QN.round(0) if with_ties else scores_QN
    found = task.metrics(task.outcome_of(lambda block: scores_QN[block]))
    expected = by_trec_eval(task, scores_QN)
    assert {name: found[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6)


def test_equal_documents_tie_and_prompts_are_embedded(monkeypatch):
    monkeypatch.setattr(retrieval, "BLOCK_CELLS", 60)  # blocks of two queries
    rng = np.random.default_rng(2)
    prompts = {"query_prompt": "query: ", "document_prompt": "passage: "}
    task = random_task(rng, texts=[f"document {i // 2}" for i in range(30)], **prompts)
    assert len(task.sentences) == 7 + 15
    assert task.sentences[0] == "query: query 0" and task.sentences[-1] == "passage: document 14"
    x_UD = rng.normal(size=(22, 4)).astype(np.float32)
    unit_UD = x_UD / np.linalg.norm(x_UD, axis=1, keepdims=True)
    scores_QN = (unit_UD[:7] @ unit_UD[7:].T)[:, np.arange(30) // 2]
    assert task.metrics(task.outcome(x_UD))["map"] == pytest.approx(by_trec_eval(task, scores_QN)["map"], abs=1e-6)


def test_a_text_that_is_asked_and_found_is_two_sentences():
    texts, gains = ["a cat", "a dog", "a bird"], [{1: 1.0}, {0: 1.0}]
    plain, own = (Retrieval("toy", texts[:2], texts, list("abc"), gains, query_prompt=prompt) for prompt in ("", "q: "))
    assert plain.roles == ["query"] * 2 + ["document"] * 3 and plain.sentences == [*texts[:2], *texts]
    assert own.roles == [f"prompted {role}" for role in plain.roles]
    assert own.sentences == ["q: a cat", "q: a dog", *texts]
    # As a query, each of the two has the vector of the other as a document.
    x_UD = np.array([[0, 1, 0], [1, 0, 0], *np.eye(3)])
    assert Evaluation([plain]).score(x_UD).metrics["toy"]["ndcg@10"] == 100
    pairs = Pairs(StsTask("pairs", {"": (texts, texts, np.arange(3.0))}))
    both = Evaluation([pairs, plain])
    assert both.sentences == [*texts, *plain.sentences] and both.roles == [""] * 3 + plain.roles
    assert both.rows_of(Evaluation([plain])).tolist() == [3, 4, 5, 6, 7]


def test_texts_that_change_places_are_another_task():
    """Their embeddings are kept by row: in another order they would be taken for those of others."""
    tasks = [
        Retrieval("toy", ["rain"], texts, ["1", "2"], [{0: 1.0}]) for texts in (["rain", "snow"], ["snow", "rain"])
    ]
    assert tasks[0].content() != tasks[1].content() and tasks[0].sentences != tasks[1].sentences


def test_between_two_models_one_embeds_queries_and_the_other_documents():
    rng = np.random.default_rng(0)
    task = random_task(rng)
    evaluation = Evaluation([task])
    x_UD, y_UD = rng.normal(size=(2, len(evaluation.sentences), 6))
    row = {sentence: i for i, sentence in enumerate(evaluation.sentences)}
    mixed_UD = x_UD.copy()
    documents = [row[text] for text in task.documents]
    mixed_UD[documents] = y_UD[documents]
    expected = evaluation.score(mixed_UD).metrics["toy"]["ndcg@10"]
    assert evaluation.score_between(x_UD, y_UD, ["toy"]) == pytest.approx(expected)
    assert evaluation.score_between(y_UD, x_UD, ["toy"]) != pytest.approx(expected)


def test_a_document_that_is_the_query_itself_is_not_ranked():
    texts, ids = ["query 0", "document 1"], ["q0", "d1"]
    first = [np.array([[1.0, 0.5]]), np.array([[0.5, 1.0]])]
    for own, expected in ((None, [0.5, 1.0]), (0, [1.0, 1.0])):
        task = Retrieval("toy", ["query 0"], texts, ids, [{1: 1.0}], own=[own])
        found = [task.outcome_of(lambda block, scores=scores: scores.copy())[0, 1] for scores in first]
        assert found == expected


def test_bm25_is_what_its_formula_says():
    """Lucene's: idf log(1 + (N - n + 0.5) / (n + 0.5)), k1 1.5, b 0.75."""
    documents = ["the cat sat on the mat", "a dog barked", "cats and dogs", "the dog and the cat played on and on"]
    queries = ["the cat", "dog barked loudly", "zebra"]
    task = Retrieval("toy", queries, documents, list("abcd"), [{3: 1.0}, {1: 1.0}, {2: 1.0}])
    evaluation = Evaluation([task])
    words = [text.split() for text in documents]
    length = np.mean([len(w) for w in words])
    scores_QN = np.zeros((3, 4))
    for q, query in enumerate(queries):
        for word in (w for w in query.split() if len(w) > 1):
            n = sum(word in w for w in words)
            for d, w in enumerate(words):
                f = w.count(word)
                idf = np.log(1 + (4 - n + 0.5) / (n + 0.5))
                scores_QN[q, d] += idf * f / (f + 1.5 * (1 - 0.75 + 0.75 * len(w) / length))
    found = evaluation.score_baselines()["bm25"].metrics["toy"]
    assert {name: found[name] for name in MEASURES} == pytest.approx(by_trec_eval(task, scores_QN), abs=1e-6)
