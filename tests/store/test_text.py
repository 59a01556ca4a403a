"""Tables, numbers and lengths of time, as people read them."""

import pytest
from jinja2 import UndefinedError

from raysed.store import text
from raysed.store.text import Table, duration, render


def test_numbers_are_on_the_right_and_text_on_the_left():
    table = Table(["models", "n", "share", "note"], [["base", "1", "50%", ""], ["learners", "-", "-0.25", "x"]])
    assert table.plain().splitlines() == [
        "models     n  share  note",
        "--------  --  -----  ----",
        "base       1    50%",
        "learners   -  -0.25  x",
    ]
    assert table.markdown().splitlines() == [
        "| models   |  n | share | note |",
        "| -------- | -: | ----: | ---- |",
        "| base     |  1 |   50% |      |",
        "| learners |  - | -0.25 | x    |",
    ]
    assert table.markdown(aligned=False).splitlines() == [
        "| models | n | share | note |",
        "| --- | --: | --: | --- |",
        "| base | 1 | 50% |  |",
        "| learners | - | -0.25 | x |",
    ]


@pytest.mark.parametrize("show", [Table.plain, Table.markdown, lambda table: table.markdown(aligned=False)])
def test_no_cell_ends_its_cell_or_its_line(show):
    lines = show(Table(["what"], [["died\ntwice | for  good"]])).splitlines()
    assert len(lines) == 3 and "died twice / for good" in lines[2]


def test_a_table_without_lines_is_false_and_has_a_header():
    assert not Table(["a", "b"], []) and Table(["a"], [["1"]])
    assert Table(["a", "b"], []).plain().split() == ["a", "b", "--", "--"]


def test_a_length_of_time_has_never_sixty_seconds_or_minutes():
    for seconds in (59.4, 59.6, 59.94, 59.96, 3599.4, 3599.6, 7199.9):
        for in_table in (False, True):
            assert not {"60", "60.0"} & set(duration(seconds, in_table).split()), seconds


def test_a_template_says_what_it_lacks_and_html_is_escaped(tmp_path, monkeypatch):
    (tmp_path / "a.md").write_text("{{ name }}\n")
    (tmp_path / "a.html").write_text("{{ name }}\n")
    monkeypatch.setattr(text, "TEMPLATES", tmp_path)
    assert (render("a.md", name="a < b"), render("a.html", name="a < b")) == ("a < b\n", "a &lt; b\n")
    with pytest.raises(UndefinedError, match="'name' is undefined"):
        render("a.md")
