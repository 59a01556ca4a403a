"""The documentation site: every page is in it, each link leads somewhere, and it loads nothing from elsewhere.

Measurements are in it, too, where pages link to them, but not in its nav.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "tools/site/mkdocs.yml"
PAGES = {
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "papers/*.md", "raysed/bundled/*.md")
    for path in ROOT.glob(pattern)
}
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None,
    reason="needs the docs extra",
)


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


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make site` builds it: not `--quiet`, which would count no warnings. Proxies lead nowhere."""
    target = tmp_path_factory.mktemp("site")
    options = ["--strict", "--config-file", SETTINGS, "--site-dir", target]
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "mkdocs", "build", *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@needs_mkdocs
def test_every_page_is_built_and_loads_nothing_from_elsewhere(site):
    for page in {*PAGES, "benchmarks/README.md"}:
        html = (site / re.sub(r"README\.html$", "index.html", page.removesuffix(".md") + ".html")).read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?([^\"' >]+)", html)
        assert len(loaded) > 3 and not [url for url in loaded if "//" in url], page


@needs_mkdocs
def test_the_site_has_the_docstrings_of_what_users_import(site):
    import raysed

    html = (site / "docs/api.html").read_text()
    for name in raysed.__all__:
        assert f'id="raysed.api.{name}"' in html, name
    assert "Distil one or several models into one small model" in html
