"""report.html of a real run, as a browser shows it."""

import html
import json
import re
from typing import Any

import pytest
from browser import ask

pytestmark = [pytest.mark.timeout(600)]

CELLS = """
  const cells = (table) => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent.trim()));
  const tableOf = (id) => document.querySelector("#" + id + " table");
"""


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
    means = sorted((entry["mean"] for entry in report["summary"] if entry["task"] == "sts-avg"), reverse=True)
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


def test_a_line_that_a_sentence_leads_to_is_highlighted(page):
    colours = page(
        """
      const colour = (row) => getComputedStyle(row.cells[0]).backgroundColor;
      return Object.fromEntries([...tableOf("scores").tBodies[0].rows].map(row => [row.id, colour(row)]));
    """,
        anchor="scores:ct:member",
    )
    plain = {shown for name, shown in colours.items() if name != "scores:ct:member"}
    assert len(plain) == 1 and colours["scores:ct:member"] not in plain


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


def test_the_page_is_one_file_with_a_chart_for_every_picture(finished_run):
    text = (finished_run / "report.html").read_text()
    assert not re.search(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", text)
    assert not re.search(r"@import|url\(|<link|<img|<iframe|fetch\(|XMLHttpRequest|\bimport\b", text)
    titles = re.findall(r"!\[(.+)\]\(plots/", (finished_run / "report.md").read_text())
    assert sorted(map(html.unescape, re.findall(r"<figcaption>(.+?)</figcaption>", text))) == sorted(titles)
    assert len(titles) == len(list((finished_run / "plots").iterdir())) and len(text) < 1_000_000
    assert "prefers-color-scheme: dark" in text
