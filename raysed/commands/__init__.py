"""Commands, one per file, for `raysed …` and the scripts in jobs/."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysed.config import Config

_SHARED: dict[str, dict[str, Any]] = {
    "--set": {"dest": "overrides", "action": "append", "default": [], "metavar": "a.b=c", "help": "override a setting"},
    "--storage": {"default": "runs", "help": "directory or URI that holds the run directories"},
    "--address": {
        "help": "use the Ray at HOST:PORT, auto (on this machine) or local (a new one); default: RAY_ADDRESS"
    },
    "--allow-worse": {
        "action": "store_true",
        "help": "export the model even if it is worse than its encoder or TF-IDF",
    },
    "--plan": {"action": "store_true", "help": "show trainings, memory and storage; train nothing"},
    "--take-over": {"action": "store_true", "help": "end another job on this run (remote storage)"},
    "--verbose": {"action": "store_true", "help": "also print debug messages and the output of Ray and its workers"},
}


def parser_of(description: str | None, *shared: str) -> argparse.ArgumentParser:
    """Return a parser with the `shared` options."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in shared:
        result.add_argument(option, **_SHARED[option])
    return result


def print_plan(config: Config) -> None:
    """Print what a run needs; check its settings before the heavy imports, which take seconds."""
    from raysed.plan.consistency import check_settings
    from raysed.process import prepare_process

    check_settings(config)
    prepare_process()

    from raysed.cluster.session import is_ray_given, session
    from raysed.plan.size import show_plan
    from raysed.resources import this_machine

    cluster = this_machine()
    if config.resources.engine != "local" and is_ray_given():
        with session("ray"):
            from raysed.cluster.machines import current_cluster

            cluster = current_cluster()
    print(show_plan(config, cluster))
