"""The pages say what is so: links, commands, options, settings with their defaults, files, and the cluster file."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from raysed.config import load_config, make_config
from raysed.recipe import member_stages, parse_recipe
from raysed.report.document import Report
from raysed.report.scores import Row, Scores
from settings_page import settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CONFIGS = sorted(ROOT.glob("raysed/configs/*.yaml"))
JOBS = sorted(ROOT.glob("jobs/*.py"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


# -- what a page holds -----------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def spans(page: Path) -> list[str]:
    """The code spans outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def fences(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def commands(page: Path) -> list[str]:
    """Every command line of a page: those of its shell blocks, continued lines joined, and its code spans."""
    lines = "\n".join(fences(page, "sh")).replace("\\\n", " ").splitlines()
    return [*filter(None, (line.split("#")[0].strip() for line in lines)), *spans(page)]


def tables(page: Path) -> list[list[str]]:
    """The cells of every table row below a rule."""
    rows = [line.strip("|").split("|") for line in prose(page).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def slugs(page: Path) -> set[str]:
    """The anchors that a forge makes of headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=by_name)


# -- pages -----------------------------------------------------------------------------------------------------------


@each_page
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{by_name(page)} links to {target}, which is not there"
        assert not anchor or anchor in slugs(other), f"{by_name(page)} links to {target}: no such heading"


@each_page
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = {name for line in commands(page) for name in re.findall(r"^make ([a-z-]+)$", line)}
    assert named <= targets


def options_of(job: Path) -> set[str]:
    spec = importlib.util.spec_from_file_location(f"job_{job.stem}", job)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {option for action in module.parser()._actions for option in action.option_strings}


def ray_options(words: list[str]) -> set[str]:
    """The options of a `ray` command, asked of Ray itself."""
    from ray.scripts.scripts import cli

    command: Any = cli
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {option for parameter in command.params for option in parameter.opts}


def options_in(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}


@each_page
def test_options_exist(page):
    own = set().union(*map(options_of, [*JOBS, ROOT / "papers/transfer.py"])) | ray_options(["job", "submit"])
    for line in commands(page):
        words = shlex.split(line) if "--" in line else []
        scripts = [place for place, word in enumerate(words) if re.fullmatch(r"jobs/\w+\.py", word)]
        if scripts:
            job = ROOT / words[scripts[0]]
            assert options_in(words[scripts[0] :]) <= options_of(job), line
            words = words[: scripts[0]]
        if words and words[0] == "ray":
            assert options_in(words) <= ray_options(words[1:]), line
        elif words and words[0] == "tensorboard":
            assert options_in(words) <= {"--logdir"}, line
        elif "grafana" in words:
            assert options_in(words) <= {"--homepath", "--config"}, line
        else:
            assert options_in(words) <= own | {"--version"}, line


def test_every_option_is_on_the_page_of_settings():
    options = options_of(ROOT / "jobs/ensemble_then_distill.py") - {"-h", "--help"}
    assert options == {row[0].strip("`") for row in tables(ROOT / "docs/configuration.md") if row[0].startswith("`--")}


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS, ROOT / "cluster.yaml", *JOBS], ids=by_name)
def test_named_configs_exist(page):
    names = set(re.findall(r"--config ([\w-]+)(?![\w.-])", page.read_text()))
    assert names <= {path.stem for path in CONFIGS}


def test_the_page_of_settings_names_every_config():
    named = {span for row in tables(ROOT / "docs/configuration.md") for span in re.findall(r"`([^`]+)`", row[0])}
    assert {path.stem for path in CONFIGS} <= named


KEYS = [setting.key for setting in settings()]


@each_page
def test_settings_exist_and_take_the_values_shown(page):
    blocks = {key.partition(".")[0] for key in KEYS if "." in key}
    pattern = rf"((?:{'|'.join(map(re.escape, blocks))})\.[\w.]+)(?:: (.+))?"
    for span in spans(page):
        match = re.fullmatch(pattern, span)
        if match is None or match[1].endswith((".py", ".md", ".json", ".jsonl", ".yaml", ".txt")):
            continue
        is_there = any(key == match[1] or key.startswith(f"{match[1]}.") for key in KEYS)
        assert is_there, f"{by_name(page)}: {match[1]} is no setting"
        if match[2]:
            load_config(None, [f"{match[1]}={match[2]}"])


@each_page
def test_settings_in_commands_and_blocks_are_taken(page):
    for line in commands(page):
        overrides = re.findall(r"--set (?:'([^']+)'|([\w.]+=\S+))", line)
        load_config(None, [quoted or plain for quoted, plain in overrides if "…" not in plain])
    for block in fences(page, "yaml"):
        make_config(yaml.safe_load(block))


@each_page
def test_repository_files_exist(page):
    """Paths below the repository's folders, and Python files by name."""
    folders = "raysed|jobs|docs|tests|benchmarks|\\.ci"
    for span in spans(page):
        if re.fullmatch(rf"(?:{folders})/[\w./-]*", span):
            assert (ROOT / span).exists(), f"{by_name(page)}: {span} is not there"
        elif re.fullmatch(r"\w+\.py", span):
            assert list(ROOT.glob(f"raysed/**/{span}")), f"{by_name(page)}: no {span} in the package"


def test_documented_names_of_the_package_exist():
    """Those whose docstrings the site shows on a page, `::: raysed.module.name`."""
    names = [name for page in PAGES for name in re.findall(r"^::: (raysed\.\S+)$", page.read_text(), re.MULTILINE)]
    assert len(names) >= 10
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name


def test_the_tree_of_the_architecture_is_the_tree():
    block = re.search(r"^    raysed/\n(?:^    .*\n)+", (ROOT / "docs/architecture.md").read_text(), flags=re.M)[0]
    listed, folders = [], []
    for line in block.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2 - 2, line.split()[0]
        folders = [*folders[:depth], name]
        listed.append("".join(folders))
    assert [path for path in listed if not (ROOT / path).exists()] == []
    rooms = [f"{by_name(path.parent)}/" for path in sorted(ROOT.glob("raysed/*/__init__.py"))]
    files = [by_name(path) for path in sorted(ROOT.glob("raysed/[a-z]*.py")) + JOBS]
    assert [path for path in rooms + files if path not in listed] == []
    assert len(set(listed)) == len(listed)


def test_the_page_of_recipes_names_every_stage():
    named = {span for row in tables(ROOT / "docs/recipes.md") for span in re.findall(r"`([^`]+)`", row[0])}
    assert {*member_stages(), "sed", "flow", "sn", "natsv", "whiten", "base"} <= named


@each_page
def test_recipes_are_recipes(page):
    for span in spans(page):
        if re.fullmatch(r"(?:base|ct)(?:-[a-z]+)+", span):
            parse_recipe(span)


# -- files and report ------------------------------------------------------------------------------------------------


def test_report_page_has_every_key():
    metrics = {"sts": {"spearman": 1.0, "pearson": 1.0, "pairs": 2, "aggregation": "mean"}}
    report = Report("r", Scores([Row("base", "base", 0, None, 1, metrics)], ["sts"], 1)).to_dict()
    page = ROOT / "docs/report.md"
    named = {span for row in tables(page) for span in re.findall(r"`([^`]+)`", row[0])}
    example = json.loads(fences(page, "json")[0])
    assert set(report) == set(example)
    assert {*report, *report["rows"][0], *metrics["sts"]} <= named
    assert set(report["rows"][0]) == set(example["rows"][0])
    assert set(report["summary"][0]) == set(example["summary"][0])


# -- versions and cluster --------------------------------------------------------------------------------------------


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def test_every_python_has_one_pin_per_package():
    for python in PYTHONS:
        chosen = [p.name for p in pins() if p.marker is None or p.marker.evaluate({"python_version": python})]
        assert sorted(chosen) == sorted({p.name for p in pins()}), python


def test_pins_are_in_the_ranges_of_the_package():
    text = (ROOT / "pyproject.toml").read_text().partition("[tool.")[0]
    ranges = {r.name: r.specifier for r in map(Requirement, re.findall(r'^    "([^"]+)",$', text, flags=re.M))}
    for pin in pins():
        assert ranges[pin.name].contains(next(iter(pin.specifier)).version), pin


def test_the_image_gets_every_dependency_in_its_pinned_version_and_with_hashes():
    """As `make lock` writes it, after a change of either file."""
    text = (ROOT / "docs/requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:\w{64}", text, flags=re.M))
    assert len(locked) == len(re.findall("==", text)) > 100
    names = "dependencies|ray|datasets|plots"
    blocks = re.findall(rf"^(?:{names}) = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), flags=re.M | re.S)
    assert len(blocks) == 4
    for requirement in map(Requirement, re.findall(r'"([^"]+)",', "".join(blocks))):
        assert requirement.specifier.contains(locked[requirement.name.lower()]), requirement
    chosen = [pin for pin in pins() if pin.marker is None or pin.marker.evaluate({"python_version": "3.11"})]
    assert all(pin.specifier.contains(locked[pin.name]) for pin in chosen if pin.name in locked)


def test_the_command_of_the_tutorial_is_one_that_works(monkeypatch):
    """Its options and settings make a configuration; the run itself is tested with smaller models."""
    from raysed import api
    from raysed.commands.distill import parser
    from raysed.plan.consistency import check_settings

    (command, *_) = re.findall(r"python jobs/distill.py (.+)", (ROOT / "docs/distill.md").read_text())
    given = parser().parse_args(shlex.split(command))
    options = {key: value for key, value in vars(given).items() if key not in ("overrides", "allow_worse", "address")}
    options["sentences"] = options.pop("corpus")
    monkeypatch.setattr(api, "_run", lambda config, verbose: config)
    config = api.distill(**options)
    check_settings(config)
    assert [teacher.path for teacher in config.teachers] == ["A", "B", "C"]
    assert (config.encoder.path, config.encoder.keep_layers) == ("A", "half") and config.sed.loss == "unit_mse"
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/distill.md").read_text(), flags=re.DOTALL)
    for block in blocks:
        check_settings(make_config(yaml.safe_load(block)))
