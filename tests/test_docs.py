"""The pages say what is so: links, commands, options, settings, files, and pinned versions."""

import importlib.util
import re
import shlex
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

import plain
from raysed.cli import COMMANDS
from raysed.config import load_config, make_config
from raysed.config_text import BASED_ON
from raysed.recipe import member_stages, parse_recipe
from raysed.store.status import CODES
from settings_page import settings

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted({*ROOT.glob("*.md"), *plain.PAGES})
CONFIGS = {path.stem for path in ROOT.glob("raysed/configs/*.yaml")}
JOBS = sorted(ROOT.glob("jobs/*.py"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


# -- what a page holds -----------------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def fences(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def spans() -> Iterator[tuple[str, str]]:
    """Every page's name with each of its code spans outside of fenced blocks."""
    for page in PAGES:
        yield from ((by_name(page), span) for span in re.findall(r"`([^`\n]+)`", prose(page)))


def commands() -> Iterator[str]:
    """Every command line of the pages: those of shell blocks, continued lines joined, and code spans."""
    for page in PAGES:
        lines = "\n".join(fences(page, "sh")).replace("\\\n", " ").splitlines()
        yield from filter(None, (line.split("#")[0].strip() for line in lines))
    yield from (span for _, span in spans())


def listed(name: str) -> set[str]:
    """The code spans before the colon in the entries of the page's lists."""
    entries = re.findall(r"^- (`.*?): ", prose(ROOT / name), flags=re.M)
    return {span for entry in entries for span in re.findall(r"`([^`]+)`", entry)}


def slugs(page: Path) -> set[str]:
    """The anchors that a forge makes of headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# -- links and commands ----------------------------------------------------------------------------------------------


def test_relative_links_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("benchmarks/**/*.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            is_there = "://" in target or (other.exists() and (not anchor or anchor in slugs(other)))
            assert is_there, f"{by_name(page)} links to {target}, which is not there"


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert {name for line in commands() for name in re.findall(r"^make ([a-z-]+)$", line)} <= targets


def test_the_pages_commands_run_in_plain_environments():
    """`make test-plain` runs all that it can: each command of raysed, job and example, but for what it says why not."""
    shown = [plain.substituted(line) for lines in plain.commands().values() for line in lines]
    runs = [line for line in shown if not plain.why_left_out(line)]
    files = {*map(by_name, [*JOBS, *ROOT.glob("examples/*.*")])} - {"examples/mteb_scores.py"}
    files -= {*map(by_name, ROOT.glob("examples/ray_template.*"))}
    for part in [*(f"raysed {name}" for name in COMMANDS), *files]:
        assert any(part in line for line in runs), f"{part} does not run"
    for pattern in [*plain.LEFT_OUT, *plain.ENDINGS]:
        assert any(re.search(pattern, line) for line in shown), f"no command is like {pattern}"


def options_of(job: Path) -> set[str]:
    """Those that its help shows; it refuses others with their new names."""
    spec = importlib.util.spec_from_file_location(f"job_{job.stem}", job)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = [action for action in module.parser()._actions if action.help != SUPPRESS]
    return {option for action in shown for option in action.option_strings}


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


def test_options_exist():
    """Of any command here: `make test-plain` runs the pages' commands, so each has its own."""
    of_jobs = {by_name(job): options_of(job) for job in [*JOBS, ROOT / "examples/write_queries.py"]}
    modules = [*(f"raysed/commands/{name}.py" for name in COMMANDS), "papers/transfer.py", "papers/views.py"]
    own = {"--version"}.union(*of_jobs.values(), *(options_of(ROOT / name) for name in modules))
    own |= {"--logdir", "--homepath", "--config", "--wrap", "--no-project", "--with-requirements"}  # of other programs
    own.update(*(re.findall(r'"(--[a-z][\w-]*)"', path.read_text()) for path in ROOT.glob("benchmarks/*.py")))
    for line in (line for line in commands() if "--" in line):
        words = shlex.split(line)
        assert options_in(words) <= own | ray_options(words[1:] if words[0] == "ray" else ["job", "submit"]), line
    documented = {name for name in listed("docs/configuration.md") if name.startswith("--")}
    assert documented == of_jobs["jobs/ensemble_then_distill.py"] - {"-h", "--help"}


# -- settings, recipes and files -------------------------------------------------------------------------------------


def test_named_configs_exist_and_each_is_on_the_page_of_settings():
    for page in [*PAGES, *ROOT.glob("raysed/configs/*.yaml"), ROOT / "cluster.yaml", *JOBS]:
        assert set(re.findall(r"--config ([\w-]+)(?![\w./-])", page.read_text())) <= CONFIGS, by_name(page)
    assert listed("docs/configuration.md") >= CONFIGS


def test_settings_exist_and_take_the_values_shown():
    keys = [setting.key for setting in settings()]
    blocks = "|".join({re.escape(key.partition(".")[0]) for key in keys if "." in key})
    for page, span in spans():
        match = re.fullmatch(rf"((?:{blocks})\.[\w.]+)(?:: (.+))?", span)
        if match is None or match[1].endswith((".py", ".md", ".json", ".jsonl", ".yaml", ".txt", ".npz")):
            continue
        is_there = any(key == match[1] or key.startswith(f"{match[1]}.") for key in keys)
        assert is_there, f"{page}: {match[1]} is no setting"
        if match[2]:
            load_config(None, [f"{match[1]}={match[2]}"])


def test_settings_in_commands_and_blocks_are_taken():
    for line in commands():
        overrides = re.findall(r"--set (?:'([^']+)'|([\w.]+=\S+))", line)
        load_config(None, [quoted or plain for quoted, plain in overrides if not re.search(r"[…$]", plain)])
    for block in (yaml.safe_load(block) for page in PAGES for block in fences(page, "yaml")):
        make_config({name: value for name, value in block.items() if name != BASED_ON})


def test_recipes_are_recipes_and_every_stage_has_its_row():
    assert listed("docs/papers.md") >= {*member_stages(), "sed", "flow", "sn", "natsv", "whiten", "base"}
    for _, span in spans():
        if re.fullmatch(r"(?:base|ct)(?:-[a-z]+)+", span):
            parse_recipe(span)


def test_repository_files_exist():
    """Paths below the repository's folders, also in commands, and Python files by name."""
    for line in commands():
        for path in re.findall(r"(?<![\w:./-])((?:jobs|benchmarks|examples)/[\w.-]+\.(?:py|yaml))", line):
            assert (ROOT / path).exists(), f"{line}: {path} is not there"
    for page, span in spans():
        if re.fullmatch(r"(?:raysed|jobs|docs|tests|benchmarks|\.ci)/[\w./-]*", span):
            assert (ROOT / span).exists(), f"{page}: {span} is not there"
        elif re.fullmatch(r"\w+\.py", span):
            assert list(ROOT.glob(f"raysed/**/{span}")), f"{page}: no {span} in the package"


# -- versions --------------------------------------------------------------------------------------------------------


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins_of(python: str) -> list[Requirement]:
    return [pin for pin in pins() if pin.marker is None or pin.marker.evaluate({"python_version": python})]


def test_every_python_has_one_pin_per_package_in_the_range_of_the_package():
    for python in PYTHONS:
        assert sorted(pin.name for pin in pins_of(python)) == sorted({pin.name for pin in pins()}), python
    text = (ROOT / "pyproject.toml").read_text().partition("[tool.")[0]
    ranges = {r.name: r.specifier for r in map(Requirement, re.findall(r'^    "([^":]+)",$', text, flags=re.M))}
    for pin in pins():
        assert ranges[pin.name].contains(next(iter(pin.specifier)).version), pin


def test_the_image_gets_every_dependency_in_its_pinned_version_and_with_hashes():
    """As `make lock` writes it, after a change of either file."""
    text = (ROOT / "docs/requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:\w{64}", text, flags=re.M))
    assert len(locked) == len(re.findall("==", text)) > 100
    names = "dependencies|ray|datasets"
    blocks = re.findall(rf"^(?:{names}) = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), flags=re.M | re.S)
    assert len(blocks) == 3
    for requirement in map(Requirement, re.findall(r'"([^"]+)",', "".join(blocks))):
        assert requirement.specifier.contains(locked[requirement.name.lower()]), requirement
    assert all(pin.specifier.contains(locked[pin.name]) for pin in pins_of("3.11") if pin.name in locked)


def test_the_pages_exit_codes_of_status_are_its_own():
    sentence = re.search(r"Exit codes: ([^.]*running[^.]*)\.", (ROOT / "docs/cluster.md").read_text())[1]
    written = {word: int(code) for code, words in re.findall(r"(\d) ([^,]+)", sentence) for word in words.split(" or ")}
    assert written == {**{state: CODES[state] for state in CODES if state != "starting"}, "no such run": 2, "gone": 4}
