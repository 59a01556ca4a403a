"""The page of the settings is that of the code, and its tables leave nothing out."""

import re

import pytest

from raysed.config import Config
from settings_page import PAGE, fill, settings


def leaves(block: dict, prefix: str = "") -> list[str]:
    """The dotted names in dumped settings; the task that is there by default stands for all."""
    found = []
    for name, value in block.items():
        key = re.sub(r"tasks\.[\w-]+", "tasks.NAME", f"{prefix}{name}")
        is_block = isinstance(value, dict) and value
        found += leaves(value, f"{key}.") if is_block else [key]
    return found


def test_the_page_is_that_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert page == fill(page), "docs/configuration.md is stale: write it anew with `make docs`"


def test_every_setting_is_in_one_row_with_its_default_and_meaning():
    rows = re.findall(r"^\| (`[a-z].*?`) \| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    shown = [key for keys, *_ in rows for key in re.findall(r"`([^`]+)`", keys)]
    assert len(set(shown)) == len(shown)
    assert set(leaves(Config().model_dump())) <= set(shown)
    assert {"encoder.static.width", "nli.train[].name", "views.files[].columns", "evaluation.tasks"} <= set(shown)
    found = {keys: (default, meaning) for keys, default, meaning in rows}
    assert found["`ct.negatives`"] == ("`7`", "Negative pairs for each positive pair.")
    assert found["`nli.batch_size`, `sts.batch_size`"] == ("`16`", "Pairs of sentences per update.")
    assert found["`evaluation.tasks`"][0] == '`{"everyday-dev": "bundled:dev", "everyday-test": "bundled:test"}`'
    assert found["`evaluation.tasks.NAME.source`"][0] == "required"
    assert found["`encoder.trust_remote_code`"][1].endswith("See [security](security.md).")


def test_a_setting_without_a_docstring_has_no_row(monkeypatch):
    class Longer(Config):
        further: int = 1

    with pytest.raises(ValueError, match=r"^Longer\.further has no docstring; say below it what"):
        settings(Longer)


def test_a_block_without_a_table_is_in_that_around_it():
    page = fill("<!-- settings -->\nSTALE\n<!-- /settings -->\ntext\n<!-- settings: sed -->\n<!-- /settings -->\n")
    above, text, below = page.partition("text\n")
    assert "| `ct.steps` |" in above and "| `sed." not in above and "STALE" not in page
    assert text and below.count("| `sed.") == sum(setting.block == "sed" for setting in settings())


def test_a_table_of_no_block_is_a_mistake():
    with pytest.raises(ValueError, match=r"has a table for 'sde', which is no block of settings$"):
        fill("<!-- settings -->\n<!-- /settings -->\n<!-- settings: sde -->\n<!-- /settings -->\n")
