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

    return lambda script: ask(finished_run / "report.html", CELLS + script, tmp_path / str(next(count)))


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


def test_the_page_is_one_file_with_a_chart_for_every_picture(finished_run):
    text = (finished_run / "report.html").read_text()
    assert not re.search(r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//""", text)
    assert not re.search(r"@import|url\((?!#)|<link|<img|<iframe|fetch\(|XMLHttpRequest|\bimport\s*\(", text)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in re.findall(r'href="([^"]*)"', text))
    titles = re.findall(r"!\[(.+)\]\(plots/", (finished_run / "report.md").read_text())
    assert sorted(map(html.unescape, re.findall(r"<figcaption>(.+?)</figcaption>", text))) == sorted(titles)
    assert len(titles) == len(list((finished_run / "plots").iterdir())) and len(text) < 1_000_000
    assert "prefers-color-scheme: dark" in text
    assert len(re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", " ", text, flags=re.DOTALL).split()) < 900
