"""Build the site from the repository's pages, with the paths and anchors that a forge shows."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
STYLE = Path(__file__).with_name("site.css")
PAGES = ("*.md", "docs/*.md", "papers/*.md", "raysed/bundled/*.md", "benchmarks/**/*.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that links in the pages name."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages in place, and the pictures and files that they link to; keep the theme's files."""
    pages = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    linked = sorted({target for page in pages for target in targets(page)} - set(pages))
    own = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in [*pages, *linked]
    ]
    own.append(File.generated(config, STYLE.name, abs_src_path=str(STYLE)))
    of_theme = [file for file in files if not Path(file.abs_src_path or "").is_relative_to(ROOT / "docs")]
    return Files([*own, *of_theme])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Hide the list of pages on the first page, which is alone in its tab; keep measurements out of the search."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri.startswith("benchmarks/"):
        page.meta["search"] = {"exclude": True}
    return markdown


def slug(title: str, separator: str) -> str:
    """Return a heading's anchor as forges make it: unlike Markdown's, it keeps runs of dashes."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def targets(page: Path) -> set[Path]:
    """Return the files of the repository that a page links to."""
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    paths = {(page.parent / link).resolve() for link in links if "://" not in link}
    return {path for path in paths if path.is_file() and path.is_relative_to(ROOT)}
