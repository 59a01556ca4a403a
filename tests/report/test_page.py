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
    means = sorted((entry["mean"] for entry in report["summary"] if entry["task"] == "mean"), reverse=True)
    assert found["falling"] == [f"{mean:.2f}" for mean in means]
    assert found["said"] == "descending" and not found["left"]
    assert found["rising"] == found["falling"][::-1]
    assert found["unknown"][-1] == "-" and found["unknown"][0] != "-", "what is not known comes last"
    assert found["text"] == sorted(found["text"])


def test_every_finding_leads_to_the_numbers_that_it_rests_on(page, report):
    findings = page("""
      return [...document.querySelectorAll(".finding")].map(item => ({
        text: item.firstChild.textContent.trim(),
        links: [...item.querySelectorAll("a")].map(link => {
          const row = document.getElementById(decodeURIComponent(link.hash.slice(1)));
          const isLine = row && row.tagName === "TR";
          return {shown: link.querySelector("b").textContent, row: isLine && cells({rows: [row]})[0]};
        }),
      }));
    """)
    assert "\n\n".join(one["text"] for one in findings) == report["findings"] and 0 < len(findings) <= 5
    for one in findings:
        assert one["links"]
        for link in one["links"]:
            assert link["row"] and link["shown"] in link["row"], (one["text"], link)
    about_ct = next(one for one in findings if "members of ct against the base" in one["text"])
    assert {"ct", "base"} <= {link["row"][1] for link in about_ct["links"]}


def test_the_page_opens_with_the_verdict_and_then_the_scores(page, report):
    headings = page('return [...document.querySelectorAll("h2")].map(heading => heading.textContent)')
    assert headings[:3] == ["The model", "Scores", "Findings"]
    (lines,) = page('return [...document.querySelectorAll("#exported table")].map(cells)')
    assert [line[1] for line in lines[1:]] == [f"{one['score']:.2f}" for one in report["exported"]["against"]]


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


def test_charts_show_their_values_without_pointing_and_fit_the_page(page, report):
    texts, width, page_width = page("""
      const drawing = document.querySelector("#scores svg");
      return [[...drawing.querySelectorAll("text")].map(text => text.textContent),
              drawing.getBoundingClientRect().width, document.querySelector("main").getBoundingClientRect().width];
    """)
    means = {f"{entry['mean']:.1f}" for entry in report["summary"] if entry["task"] == "mean"}
    assert means <= set(texts) and "members (3) of ct" in texts and 300 < width < page_width


def test_the_page_is_one_file_with_a_chart_for_every_picture(finished_run):
    text = (finished_run / "report.html").read_text()
    assert not re.search(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", text)
    assert not re.search(r"@import|url\((?!#)|<link|<img|<iframe|fetch\(|XMLHttpRequest|\bimport\s*\(", text)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in re.findall(r'href="([^"]*)"', text))
    titles = re.findall(r"!\[(.+)\]\(plots/", (finished_run / "report.md").read_text())
    assert sorted(map(html.unescape, re.findall(r"<figcaption>(.+?)</figcaption>", text))) == sorted(titles)
    assert len(titles) == len(list((finished_run / "plots").iterdir())) and len(text) < 1_000_000
    assert "prefers-color-scheme: dark" in text
