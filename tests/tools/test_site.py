"""The documentation site has every page; `make site` builds it, where a broken link is an error."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "tools/site/mkdocs.yml"
PAGES = {
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "papers/*.md", "raysed/bundled/*.md")
    for path in ROOT.glob(pattern)
}


def named(nav: Any) -> Iterator[str]:
    """The pages of a nav."""
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []:
        yield from named(item)


def test_every_page_is_in_the_nav_once():
    listed = list(named(yaml.safe_load(SETTINGS.read_text())["nav"]))
    assert len(PAGES) > 15
    assert sorted(listed) == sorted(PAGES)
