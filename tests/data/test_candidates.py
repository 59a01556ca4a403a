"""Batches of queries with their texts."""

import numpy as np
import pytest
import torch

from raysed.data.candidates import CANDIDATES, NONE, VECTORS, CandidateBatches
from raysed.data.tokens import FlatTokens, TokenTable

ROWS, QUERIES = 60, 37


@pytest.fixture
def table(tmp_path):
    """Random tokens, targets and candidates; some queries have fewer negatives."""
    rng = np.random.default_rng(0)
    flat = FlatTokens(tmp_path)
    flat.add(TokenTable.from_lists([[row + 1] * rng.integers(1, 9) for row in range(ROWS)]))
    flat.close()
    asked = rng.permutation(ROWS)[:QUERIES]
    rows = np.stack([[row, *rng.choice(np.delete(np.arange(ROWS), row), 3, replace=False)] for row in asked])
    rows[::5, 3] = NONE
    np.save(tmp_path / CANDIDATES, rows)
    np.save(tmp_path / VECTORS, rng.normal(size=(ROWS, 3)).astype(np.float16))
    return tmp_path, rows


def test_a_batch_has_queries_and_then_the_texts_of_all_of_them_once(table):
    directory, rows = table
    batches, vectors = CandidateBatches(directory, directory, 20, seed=3), np.load(directory / VECTORS)
    assert (batches.sentences, batches.per_epoch, batches.count) == (20, 7, QUERIES)
    seen = []
    for step in range(7):
        batch = batches(step)
        assert batch.queries == 5
        asked, texts = batch.ids[:5], batch.ids[5:]
        expected = {row for query in asked for row in rows[rows[:, 0] == query][:, 1:].ravel() if row != NONE}
        assert sorted(expected) == texts.tolist()
        assert torch.equal(batch.targets, torch.from_numpy(vectors[batch.ids].astype(np.float32)))
        for place, row in enumerate(batch.ids):
            assert set(batch.tokens.input_ids[batch.tokens.segments == place].tolist()) == {row + 1}
        assert batch.same_QP.tolist() == [[query == text for text in texts] for query in asked]
        seen += asked.tolist()
    assert len(seen) == 35 and not set(seen) - set(rows[:, 0])
    assert seen != [query for step in range(7, 14) for query in batches(step).ids[:5].tolist()]


def test_batches_depend_on_seed_and_step_only(table):
    """Not on earlier steps, nor on the number of workers, who share the queries."""
    directory, _ = table
    for step in (11, 2):
        whole = CandidateBatches(directory, directory, 20, seed=3)(step)
        for world in (1, 2, 5):
            parts = [CandidateBatches(directory, directory, 20, 3, rank, world)(step) for rank in range(world)]
            assert [query for part in parts for query in part.ids[: part.queries]] == whole.ids[:5].tolist()
            assert sum(part.weight for part in parts) == pytest.approx(world)
            assert [part.weight for part in parts] == pytest.approx([part.queries * world / 5 for part in parts])


def test_queries_that_are_held_out_are_not_trained_on(table):
    directory, rows = table
    batches = CandidateBatches(directory, directory, 4, seed=3, held_out=True, offset=np.ones(3))
    held_out = batches.held_out()
    assert [batch.ids[0] for batch in held_out] == rows[::20, 0].tolist()
    assert batches.per_epoch == QUERIES - 2
    trained = [batches(step).ids[0] for step in range(batches.per_epoch)]
    assert sorted(trained) == sorted(np.delete(rows[:, 0], [0, 20]))
    vectors = np.load(directory / VECTORS).astype(np.float32)
    assert torch.equal(batches(0).targets, torch.from_numpy(vectors[batches(0).ids] - 1))
