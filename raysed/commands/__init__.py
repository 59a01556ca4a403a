"""Commands, one per file, for `raysed …` and two scripts in jobs/."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysed.config import Config

_SHARED: dict[str, dict[str, Any]] = {
    "--set": {"dest": "overrides", "action": "append", "default": [], "metavar": "a.b=c", "help": "override a setting"},
    "--storage": {"default": "runs", "help": "directory or URI that holds the run directories; default: runs"},
    "--address": {
        "help": "use the Ray at HOST:PORT, auto (on this machine) or local (a new one); default: RAY_ADDRESS"
    },
    "--allow-worse": {
        "action": "store_true",
        "help": "export the model even if it is worse than its encoder or TF-IDF",
    },
    "--plan": {"action": "store_true", "help": "show trainings, minutes, memory and storage; train nothing"},
    "--take-over": {"action": "store_true", "help": "end another job on this run (remote storage)"},
    "--verbose": {"action": "store_true", "help": "also print debug messages and the output of Ray and its workers"},
}


def parser_of(description: str | None, *shared: str) -> argparse.ArgumentParser:
    """Return a parser with the `shared` options."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shared(result, *shared)
    return result


def add_shared(group: argparse._ActionsContainer, *options: str) -> None:
    """Add options that several commands have."""
    for option in options:
        group.add_argument(option, **_SHARED[option])


def add_names(group: argparse._ActionsContainer, option: str, metavar: str, text: str, required: bool = False) -> None:
    """Add an option that takes several names at once: `--teachers A B`."""
    about: dict[str, Any] = {"metavar": metavar, "help": text, "required": required}
    group.add_argument(option, nargs="+", action="extend", default=[], **about)


def add_tasks(group: argparse._ActionsContainer, text: str) -> None:
    """Add `--task`, which is repeatable."""
    about: dict[str, Any] = {"dest": "tasks", "metavar": "TASK", "help": f"{text}; repeatable"}
    group.add_argument("--task", action="append", default=[], **about)


def print_plan(config: Config) -> None:
    """Print what a run needs; check its settings before the heavy imports, which take seconds."""
    from raysed.plan.consistency import check_settings
    from raysed.process import heed_others, prepare_process

    check_settings(config)
    prepare_process()
    notes = heed_others()

    from raysed.cluster.session import is_ray_given, session
    from raysed.pipeline import plan_text
    from raysed.resources import this_machine

    cluster = this_machine()
    if config.resources.engine != "local" and is_ray_given():
        with session("ray") as connect:
            connect()
            from raysed.cluster.machines import current_cluster

            cluster = current_cluster()
    print(plan_text(config, cluster), *notes, sep="\n")
