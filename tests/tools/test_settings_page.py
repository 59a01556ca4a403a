"""The page of the settings is that of the code, and its lists leave nothing out."""

import re

from raysed.config import Config
from settings_page import PAGE, fill


def leaves(block: dict, prefix: str = "") -> list[str]:
    """The dotted names in dumped settings; the task that is there by default stands for all."""
    found = []
    for name, value in block.items():
        key = re.sub(r"tasks\.[\w-]+", "tasks.NAME", f"{prefix}{name}")
        found += leaves(value, f"{key}.") if isinstance(value, dict) and value else [key]
    return found


def test_the_page_is_that_of_the_code_and_has_every_setting_once():
    page = PAGE.read_text(encoding="utf-8")
    assert page == fill(page), "docs/configuration.md is stale: write it anew with `make docs`"
    entries = re.findall(r"^- (`[a-z].*?`) \((.+?)\): (.+)$", page, flags=re.M)
    shown = [key for keys, *_ in entries for key in re.findall(r"`([^`]+)`", keys)]
    assert len(set(shown)) == len(shown)
    assert set(leaves(Config().model_dump())) <= set(shown)
    assert ("`ct.negatives`", "`7`", "Negative pairs for each positive pair.") in entries
