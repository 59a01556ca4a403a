"""The run: what it left out, corpus, time, environment, settings, and how to repeat it."""

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from raysed.report.results import RunResults, versions
from raysed.report.section import Block, Code, Section
from raysed.store.status import read_timings
from raysed.store.text import Table, duration


def _members(run: RunResults) -> list[dict[str, Any]]:
    named = [(*name.split("/"), reason) for name, reason in run.facts.left_out.items()]
    return [{"recipe": recipe, "index": int(index), "reason": reason} for recipe, *_, index, reason in named]


def _members_blocks(members: Sequence[Mapping[str, Any]], run: RunResults) -> Iterator[Block]:
    yield Table(["recipe", "member", "reason"], [[str(value) for value in member.values()] for member in members])


def _time_blocks(timings: Mapping[str, Mapping[str, float]], run: RunResults) -> Iterator[Block]:
    total = sum(took["seconds"] for took in timings.values())
    columns = {
        "stage": lambda line: line[0],
        "time": lambda line: duration(line[1]["seconds"], in_table=True),
        "share": lambda line: f"{line[1]['seconds'] / (total or 1):.0%}",
    }
    if any(took.get("sentences") for took in timings.values()):
        columns["sentences/s"] = lambda line: (
            f"{line[1]['sentences'] / max(line[1]['seconds'], 0.1):.0f}" if "sentences" in line[1] else "-"
        )
    yield Table.of([*timings.items(), ("total", {"seconds": total})], columns, has_total=True)


def _environment(run: RunResults) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return {**versions(), "python": platform.python_version(), "cluster": run.facts.cluster, "device": device}


def how_to_repeat(location: str, run: str, job: Sequence[str] = ("python", "jobs/ensemble_then_distill.py")) -> str:
    """Return the command that repeats a run under another name, with the settings in its directory."""
    settings = f"{run}.yaml" if "://" in location else f"{location}/{run}/config.yaml"
    again = f"{run[:94]}-again"  # names have at most 100 characters
    return shlex.join([*job, "--config", settings, "--run", again, "--storage", location])


def _repeat(run: RunResults) -> dict[str, str]:
    """Return the command that was typed, if any, and one that repeats the run.

    The latter starts `ensemble_then_distill.py` in the directory of the started script, or else `raysed run`.
    """
    started = Path(sys.argv[0])
    words = ["raysed"] if started.name == "raysed" else ["python", sys.argv[0]]
    path = started.parent / "ensemble_then_distill.py"
    job = ["python", str(path)] if started.name and path.is_file() else ["raysed", "run"]
    repeat = how_to_repeat(run.storage.location, run.storage.run, job)
    typed = "" if not started.name or "ipykernel" in sys.modules else shlex.join([*words, *sys.argv[1:]])
    return {"command": typed, "repeat": repeat}


def _repeat_blocks(repeat: Mapping[str, str], run: RunResults) -> Iterator[Block]:
    yield (
        "To run the same settings and inputs under another name (from an object store, download `config.yaml` first):"
    )
    yield Code(repeat["repeat"])
    if repeat["command"]:
        yield "This run was started, or last continued, with:"
        yield Code(repeat["command"])


def _corpus(run: RunResults) -> dict[str, Any]:
    return {**run.facts.corpus.get("report", {}), **run.facts.corpus.get("lengths", {})}


SECTIONS = [
    Section("run", "The run", 120),
    Section("members", "Left out", 121, _members, blocks=_members_blocks, is_part=True, empty=[]),
    Section("corpus", "", 122, _corpus, is_part=True, empty={}),
    Section("views", "", 123, lambda run: run.facts.views, is_part=True),
    Section("timings", "Time", 124, lambda run: read_timings(run.storage), blocks=_time_blocks, is_part=True, empty={}),
    Section("environment", "", 125, _environment, is_part=True, empty={}),
    Section("config", "", 126, lambda run: run.config.model_dump(mode="json"), is_part=True, empty={}),
    Section("started", "Repeat", 127, _repeat, blocks=_repeat_blocks, is_part=True),
]
