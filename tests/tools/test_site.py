"""The documentation site: every page is in it, each link leads somewhere, and it loads nothing from elsewhere."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "tools/site/mkdocs.yml"
PAGES = {
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "benchmarks/*/README.md")
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
    assert len(PAGES) > 30
    assert sorted(listed) == sorted(PAGES)


def built(settings: Path, target: Path) -> subprocess.CompletedProcess:
    """Builds the site as `make site` does: not `--quiet`, which would count no warnings. Proxies lead nowhere."""
    options = ["--strict", "--config-file", settings, "--site-dir", target]
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "mkdocs", "build", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **nowhere})


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site."""
    target = tmp_path_factory.mktemp("site")
    done = built(SETTINGS, target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@needs_mkdocs
def test_every_page_is_built_and_loads_nothing_from_elsewhere(site):
    for page in PAGES:
        html = (site / re.sub(r"README\.html$", "index.html", page.removesuffix(".md") + ".html")).read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=[\"']?([^\"' >]+)", html)
        assert len(loaded) > 3 and not [url for url in loaded if "//" in url], page


@needs_mkdocs
def test_the_site_has_the_docstrings_of_what_users_import(site):
    import raysed

    html = (site / "docs/api.html").read_text()
    for name in raysed.__all__:
        assert f'id="raysed.api.{name}"' in html, name
    assert "Make one small model of one or several models" in html


@needs_mkdocs
def test_headings_have_the_anchors_that_a_forge_makes():
    """Where Markdown's own would be others."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "tools/site/hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert hooks.slug("Members & learner - a `flow`: Überblick", "-") == "members--learner---a-flow-überblick"
    config = SimpleNamespace(mdx_configs={"toc": {"permalink": True}})
    assert hooks.on_config(config).mdx_configs["toc"] == {"permalink": True, "slugify": hooks.slug}


@needs_mkdocs
def test_broken_links_end_the_build_and_are_named(tmp_path):
    """Of a page that is beside the others while the site is built."""
    for name in ("docs", "benchmarks", "tools", "raysed", *(path.name for path in ROOT.glob("*.md"))):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "README.md").unlink()
    (tmp_path / "README.md").write_text("# raysed\n\n[a](docs/no-such-page.md) [b](docs/init.md#no-such-heading)\n")
    (tmp_path / "tools").unlink()
    shutil.copytree(ROOT / "tools/site", tmp_path / "tools/site")
    done = built(tmp_path / "tools/site/mkdocs.yml", tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "no-such-page.md" in said and "no-such-heading" in said
