"""Edit distance, AUC and the word-frequency table against slow references and planted data."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.analysis import (
    Qnli,
    edit_distance,
    edit_distance_table,
    edit_distances,
    frequency_table,
    load_qnli,
)


def slow_edit_distance(a, b):
    """The table of Wagner and Fischer, cell by cell."""
    table = [[i + j for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (a[i - 1] != b[j - 1]))
    return table[-1][-1]


@settings(max_examples=300, deadline=None)
@given(st.text("abc", max_size=90), st.text("abcd", max_size=90))
def test_edit_distance_equals_the_table(a, b):
    assert edit_distance(a, b) == slow_edit_distance(a, b)


class TestEditDistance:
    def test_words_are_in_lower_case_and_punctuation_counts(self):
        found = edit_distances(["I like it.", "", "A b"], ["i dislike it", "x", "A b"])
        assert found["words"].tolist() == [2, 1, 0]
        assert found["characters"].tolist() == [5, 1, 0]

    def test_table_tells_a_model_of_wording_from_one_of_meaning(self):
        """One similarity is minus the distance, the other is the gold score; gold and distance are independent."""
        rng = np.random.default_rng(0)
        distance_P, gold_P = rng.integers(0, 40, 4000), rng.integers(0, 26, 4000) / 5
        table = edit_distance_table({"words": distance_P}, gold_P, {"wording": -distance_P, "meaning": 2 * gold_P})
        assert list(table) == ["gold", "wording", "meaning"]
        assert table["gold"] == table["meaning"]
        assert table["gold"]["gold"] == pytest.approx(100) and abs(table["gold"]["words"]) < 5
        assert table["wording"]["words"] == pytest.approx(-100) and abs(table["wording"]["gold"]) < 5


class TestAuc:
    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
    def test_equals_the_share_of_ordered_pairs(self, examples):
        """An answer at angle a to its question has the cosine cos(a)."""
        angles, labels = np.array(examples, dtype=float).T * [[0.5], [1]]
        questions, answers = [f"q{i}" for i in range(len(labels))], [f"a{i}" for i in range(len(labels))]
        ones, zeros = -angles[labels == 1], -angles[labels == 0]
        if not len(ones) or not len(zeros):
            return
        x_UD = np.stack([np.cos([*(0 * angles), *angles]), np.sin([*(0 * angles), *angles])], axis=1)
        expected = np.mean([(one > zero) + (one == zero) / 2 for one in ones for zero in zeros])
        assert Qnli(questions, answers, labels).score(x_UD / 2) == pytest.approx(100 * expected)


class TestQnli:
    HEADER = "index\tquestion\tsentence\tlabel\n"

    def write(self, tmp_path, text):
        (tmp_path / "dev.tsv").write_bytes(text.encode())
        return str(tmp_path / "dev.tsv")

    def test_file_without_quoting(self, tmp_path):
        body = '0\tWho ran?\tHe said "no.\tentailment\r\n1\tWhy?\tIt\u2028rained.\tnot_entailment\r\n'
        found = load_qnli(self.write(tmp_path, self.HEADER.replace("\n", "\r\n") + body))
        assert found.questions == ["Who ran?", "Why?"]
        assert found.answers == ['He said "no.', "It\u2028rained."]
        assert found.labels.tolist() == [1, 0]

    def test_hub_dataset_is_read_by_the_names_of_its_classes(self, hub):
        """The hub's QNLI has 0 for entailment, the other way round than here."""
        columns = {"question": ["a", "b"], "sentence": ["c", "d"], "label": [0, 1]}
        label = ClassLabel(names=["entailment", "not_entailment"])
        kinds = Features({"question": Value("string"), "sentence": Value("string"), "label": label})
        asked = hub(Dataset.from_dict(columns, features=kinds))
        found = load_qnli("nyu-mll/glue")
        assert asked == [(("nyu-mll/glue", "qnli"), {"split": "validation"})]
        assert (found.questions, found.answers, found.labels.tolist()) == (["a", "b"], ["c", "d"], [1, 0])


class TestFrequency:
    def slow(self, x_VD, ranked, start, stop, k):
        """Mean distance to the k nearest and mean of the k largest products, word by word."""
        distances, products = [], []
        for word in ranked[start:stop]:
            others = [other for other in ranked if other != word]
            distances.append(np.mean(sorted(np.linalg.norm(x_VD[word] - x_VD[other]) for other in others)[:k]))
            products.append(np.mean(sorted((x_VD[word] @ x_VD[other] for other in others), reverse=True)[:k]))
        return np.mean(distances), np.mean(products)

    def test_equals_the_slow_reference(self):
        rng = np.random.default_rng(0)
        x_VD, counts_V = rng.normal(size=(180, 5)), rng.integers(0, 50, 180)
        counts_V[[7, 9]] = 0
        ranked = sorted(np.flatnonzero(counts_V), key=lambda word: -counts_V[word])
        (found,) = frequency_table(x_VD, counts_V)
        assert found["ranks"] == [0, 100]
        assert found["norm"] == pytest.approx(np.mean([np.linalg.norm(x_VD[word]) for word in ranked[:100]]))
        for k in (3, 5, 7):
            distance, product = self.slow(x_VD, ranked, 0, 100, k)
            assert found["distance"][str(k)] == pytest.approx(distance, rel=1e-4)
            assert found["dot"][str(k)] == pytest.approx(product, rel=1e-4)
