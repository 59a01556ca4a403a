"""Finding translations, against plain loops, and the files that are such a task."""

import numpy as np
import pytest

from raysed.config import TaskConfig
from raysed.errors import UserError
from raysed.score.kinds.translations import Translations
from raysed.score.tasks import kind_of, load_any_task


def test_accuracy_is_that_of_the_nearest_text_in_both_directions(monkeypatch):
    """Texts that are equal are one, in blocks of any size; words in common find what has them."""
    monkeypatch.setattr("raysed.score.kinds.translations.BLOCK_CELLS", 100)
    rows = [(f"en {i}", f"de {i // 2}", f"fr {i}") for i in range(30)]
    task = Translations("t", ["en", "de", "fr"], rows)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(30, 3))
    x_UD = {text: centres[int(text[3:])] + rng.normal(size=3) / 2 for text in task.sentences}

    def finds(row: int, a: int, b: int) -> bool:
        cosines = [x_UD[rows[row][a]] @ x_UD[other[b]] / np.linalg.norm(x_UD[other[b]]) for other in rows]
        return rows[int(np.argmax(cosines))][b] == rows[row][b]

    ways = {"en to de": (0, 1), "de to en": (1, 0), "en to fr": (0, 2), "fr to en": (2, 0)}
    expected = {name: 100 * np.mean([finds(row, *way) for row in range(30)]) for name, way in ways.items()}
    found = task.metrics(task.outcome(np.stack(list(x_UD.values()))))
    assert found["directions"] == pytest.approx(expected) and len({*expected.values()}) == 4
    assert found["translations"] == pytest.approx(np.mean(list(expected.values()))) and found["rows"] == 30
    assert task.metrics(task.lexical()["word-overlap"]())["directions"]["en to fr"] == 100


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        *(("en,de", "translations"), ("sentence,de,pt-BR,split", "translations"), ("text,zh_Hans", "translations")),
        *(("text,label", "neighbours"), ("score,sentence1,sentence2", "pairs"), ("en,de,score", "pairs")),
        *(("id,de", "pairs"), ("de,id", "pairs"), ("sentence,german", "pairs"), ("de", "pairs")),
    ],
)
def test_a_file_whose_columns_are_languages_is_such_a_task_and_no_other(tmp_path, header, kind):
    (tmp_path / "a.csv").write_text(f"{header}\n")
    assert kind_of(TaskConfig(source=str(tmp_path / "a.csv")), "evaluation.tasks.t") == kind


def test_rows_that_lack_a_text_are_counted_and_two_are_needed(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("english\tgerman\tsplit\nrain\tRegen\ttest\nsnow\t\ttest\nsun\tSonne\ttest\nfog\tNebel\ttrain\n")
    task = load_any_task("t", config := TaskConfig(source=str(file), kind="translations"))
    assert task.rows == [("rain", "Regen"), ("sun", "Sonne")]
    assert task.size == "2 rows, in english, german (1 more lack a text)"
    with pytest.raises(UserError, match="a column per language, and two rows or more"):
        load_any_task("t", config.model_copy(update={"split": "train"}))
