"""report.html of real runs, as a browser shows it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import ask
from scipy.stats import rankdata
from started_jobs import artefact, tiny_evaluation, tiny_settings

import raysed.pipeline
from raysed.config import make_config

pytestmark = [pytest.mark.timeout(600)]

CELLS = """
  const cells = (table) => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()));
  const tableOf = (id) => document.querySelector("#" + id + " table");
"""
NASTY = '<script>document.title = "taken over"</script><b>bold</b> & "quoted" `code` {{ 7 * 7 }}'


@pytest.fixture
def page(finished_run, tmp_path):
    """Asks the browser about the report of the finished run."""
    count = iter(range(100))

    def asked(script: str, **options: Any) -> Any:
        return ask(finished_run / "report.html", CELLS + script, tmp_path / str(next(count)), **options)

    return asked


@pytest.fixture
def report(finished_run) -> dict[str, Any]:
    return json.loads((finished_run / "report.json").read_text())


def headline(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in report["summary"] if entry["task"] == "sts-avg"]


def test_a_click_sorts_a_table_by_number_and_another_one_turns_it_round(page, report):
    found = page("""
      const table = tableOf("scores"), heads = [...table.tHead.rows[0].cells];
      const column = (name) => heads.findIndex(head => head.textContent.trim() === name);
      const order = (name) => {
        heads[column(name)].querySelector("button").click();
        return [...table.tBodies[0].rows].map(row => row.cells[column(name)].textContent);
      };
      return {falling: order("mean"), said: heads[column("mean")].ariaSort, rising: order("mean"),
              unknown: order("std"), text: order("recipe"), left: heads[column("mean")].hasAttribute("aria-sort")};
    """)
    means = sorted((entry["mean"] for entry in headline(report)), reverse=True)
    assert found["falling"] == [f"{mean:.2f}" for mean in means]
    assert found["said"] == "descending" and not found["left"]
    assert found["rising"] == found["falling"][::-1]
    assert found["unknown"][-1] == "-" and found["unknown"][0] != "-", "what is not known comes last"
    assert found["text"] == sorted(found["text"])


def test_every_sentence_of_the_findings_leads_to_the_numbers_that_it_rests_on(page, report):
    sentences = page("""
      return [...document.querySelectorAll(".findings li")].map(item => ({
        text: item.firstChild.textContent.trim(),
        links: [...item.querySelectorAll("a")].map(link => {
          const row = document.getElementById(decodeURIComponent(link.hash.slice(1)));
          const isLine = row && row.tagName === "TR";
          return {shown: link.querySelector("b").textContent, row: isLine && cells({rows: [row]})[0]};
        }),
      }));
    """)
    assert " ".join(one["text"] for one in sentences) == " ".join(report["findings"].split())
    assert sum(bool(one["links"]) for one in sentences) > len(sentences) / 2
    for one in sentences:
        for link in one["links"]:
            assert link["row"] and link["shown"] in link["row"], (one["text"], link)
    first = next(one for one in sentences if "CT raised" in one["text"] or "CT lowered" in one["text"])
    assert {link["row"][1] for link in first["links"]} == {"ct", "base"}


def test_a_line_that_a_sentence_leads_to_is_highlighted_and_those_beside_it(page):
    colours = """
      const colour = (row) => getComputedStyle(row.cells[0]).backgroundColor;
      const rows = [...tableOf("scores").tBodies[0].rows];
    """
    followed = page(
        colours + "return Object.fromEntries(rows.map(row => [row.id, colour(row)]))", anchor="scores:ct:member"
    )
    plain = {shown for name, shown in followed.items() if name != "scores:ct:member"}
    assert len(plain) == 1 and followed["scores:ct:member"] not in plain
    beside = page(
        colours
        + """
        const says = (item) => /^CT (raised|lowered)/.test(item.textContent.trim());
        const item = [...document.querySelectorAll(".findings li")].find(says);
        item.querySelector("a").click();
        return [[...item.querySelectorAll("a")].map(link => link.hash.slice(1)),
                rows.filter(row => row.classList.contains("beside")).map(row => row.id)];
    """
    )
    assert set(beside[0]) == set(beside[1]) and len(beside[1]) > 2


def test_pointing_at_a_mark_of_a_chart_shows_its_value(page, report):
    shown = page("""
      const field = document.querySelector("#scores svg.field"), box = field.getBoundingClientRect();
      const tip = document.getElementById("tip"), said = [];
      for (const mark of field.querySelectorAll("circle")) {
        const [x, y] = [mark.cx.baseVal.value, mark.cy.baseVal.value];
        const options = {clientX: box.left + x, clientY: box.top + y, bubbles: true};
        field.dispatchEvent(new PointerEvent("pointermove", options));
        if (!tip.hidden) said.push(tip.textContent);
      }
      const far = {clientX: box.left - 500, clientY: box.top - 500, bubbles: true};
      field.dispatchEvent(new PointerEvent("pointermove", far));
      return [said, tip.hidden];
    """)
    members = [row for row in report["rows"] if (row["recipe"], row["kind"], row["layers"]) == ("ct", "member", 1)]
    expected = {f"ct {row['index']}: {row['metrics']['everyday-test']['spearman']:.2f}" for row in members}
    assert len(expected) == 3 and expected & set(shown[0]), shown[0]
    assert any(text.startswith("base 0: ") for text in shown[0])
    assert shown[1], "far from every mark nothing is shown"


def test_every_picture_of_the_run_is_a_chart_with_its_values(page, finished_run):
    captions, marks = page("""
      const figures = [...document.querySelectorAll("figure")];
      return [figures.map(figure => figure.querySelector("figcaption").textContent),
              figures.map(figure => figure.querySelectorAll("circle, rect").length)];
    """)
    titles = re.findall(r"!\[(.+)\]\(plots/", (finished_run / "report.md").read_text())
    assert sorted(captions) == sorted(titles) and len(titles) == len(list((finished_run / "plots").iterdir()))
    assert min(marks) >= 5


def test_the_page_shows_the_neighbours_before_and_after(page, report):
    found = page("""
      return [...document.querySelectorAll("#neighbours article")].map(card => [
        card.querySelector("h3").textContent,
        [...card.querySelectorAll(".sides > div")].map(side => [
          side.querySelector(".side").textContent.trim().replace(/\\s+/g, " "),
          [...side.querySelectorAll("li")].map(item => item.textContent.trim()),
        ]),
      ]);
    """)
    unlabelled, exported = report["analysis"]["unlabelled"], report["exported"]["recipe"]
    assert list(unlabelled) == ["base", exported] and exported == "ct-sed-flow"
    for place, (sentence, sides) in enumerate(found):
        assert [name for name, _ in sides] == ["base", exported]
        for (_, shown), model in zip(sides, unlabelled.values()):
            entry = model["neighbours"][place]
            assert entry["sentence"] == sentence
            assert shown == [f"{near['cosine']:.2f} {near['sentence']}" for near in entry["nearest"]]
    assert len(found) == 5


def test_the_page_shows_the_pairs_that_got_better_and_worse_most(page, report, finished_run):
    """Ranks recomputed from the embeddings that the run has kept."""
    tables = page("return [...document.querySelectorAll('#pairs table')].map(cells)")
    evaluation = tiny_evaluation()
    places = ("base/embeddings/00", "ct-sed-flow/calibrations/00")
    cosines = [
        evaluation.outcome(np.load(artefact(finished_run, place) / "layers-1.npy"), "everyday-test") for place in places
    ]
    task = evaluation.tasks["everyday-test"]
    gold, before, after = (rankdata(values) for values in (task.gold, *cosines))
    gain = np.abs(before - gold) - np.abs(after - gold)
    for kind, order, table in (("better", np.argsort(-gain), tables[0]), ("worse", np.argsort(gain), tables[1])):
        found = report["changes"][kind]
        rows = [task.first.index(pair["sentence1"]) for pair in found]  # equal changes stand in any order
        assert gain[rows].tolist() == pytest.approx(gain[order[:5]].tolist()), kind
        head, *lines = table
        assert [line[:2] for line in lines] == [[pair["sentence1"], pair["sentence2"]] for pair in found]
        assert [line[head.index("cosine after")] for line in lines] == [f"{pair['cosine_after']:.2f}" for pair in found]


def test_the_page_asks_nothing_of_any_network(page, finished_run):
    text = (finished_run / "report.html").read_text()
    assert not re.search(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", text)
    assert not re.search(r"@import|url\(|<link|<img|<iframe|fetch\(|XMLHttpRequest|\bimport\b", text)
    assert page("return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert len(text) < 1_000_000


def test_it_is_dark_where_the_reader_prefers_that(page):
    """And words are told from their ground by as much contrast as WCAG asks for (4.5)."""
    script = """
      const style = getComputedStyle(document.body), soft = getComputedStyle(document.querySelector(".note"));
      return [style.backgroundColor, style.color, soft.color].map(colour => colour.match(/\\d+/g).map(Number));
    """

    def luminance(colour):
        parts = [part / 255 for part in colour]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))

    for dark in (False, True):
        paper, *inks = map(luminance, page(script, dark=dark))
        assert (paper < 0.05) == dark
        for ink in inks:
            assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 4.5


@pytest.fixture(scope="module")
def nasty(tmp_path_factory) -> Path:
    """The directory of a run on sentences that look like code."""
    root = tmp_path_factory.mktemp("nasty")
    words = ["A cat sat.", "The dog ran.", "A bird sang.", "She had a car.", "We saw the river.", "He is old."]
    rows = [("score", "sentence1", "sentence2")]
    rows += [(str(i % 6), f"{NASTY} {a}", b) for i, (a, b) in enumerate((a, b) for a in words for b in words)]
    (root / "pairs.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    changes = {
        "run": "nasty",
        "recipes": ["base-whiten"],
        "flow": {"fit_on": "tasks"},
        "evaluation": {"tasks": {"<i>mine</i>": str(root / "pairs.tsv")}, "dev": "<i>mine</i>"},
        "export": {"recipe": "base-whiten"},
        "storage": str(root),
    }
    settings = {key: value for key, value in tiny_settings(**changes).items() if key in changes}
    raysed.pipeline.run(make_config(settings), lambda line: None)
    return root / "nasty"


def test_what_looks_like_code_in_a_sentence_is_shown_and_not_run(nasty, tmp_path):
    title, scripts, bold, text = ask(
        nasty / "report.html",
        "return [document.title, document.querySelectorAll('script').length, "
        "document.querySelectorAll('main td b, main article b, main i').length, document.body.innerText]",
        tmp_path,
    )
    assert title == "nasty: results"
    assert scripts == 2, "the page's own, and that of this test"
    assert bold == 0
    assert NASTY in text and "<i>mine</i>" in text
