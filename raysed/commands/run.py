"""Train an ensemble, distil its mean into one model, calibrate it, and report what helped.

On this machine:  raysed run --config raysed.yaml
On a cluster:     ray job submit --working-dir . -- python jobs/ensemble_then_distill.py --storage s3://bucket/runs

The same command continues a stopped run and does nothing for a complete one. Exit code 3: the run is complete, but its
model is worse than its encoder or TF-IDF on the dev task and is not exported (see --allow-worse).
"""

import argparse
import json

from raysed.cli import code_of
from raysed.commands import parser_of, print_plan


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--set", "--address", "--allow-worse", "--take-over", "--plan", "--verbose")
    result.add_argument(
        "--config", default="quickstart", help="YAML file, or name in raysed/configs/; default: quickstart"
    )
    result.add_argument("--storage", help="directory or URI that holds the run directories")
    result.add_argument("--run", help="name of the run")
    return result


def job(arguments: argparse.Namespace) -> int:
    """Run the pipeline, or show the plan; return the exit code."""
    from raysed.config import find_config, load_config

    named = {"storage": arguments.storage, "run": arguments.run, "export.allow_worse": arguments.allow_worse}
    overrides = [*arguments.overrides, *(f"{key}={json.dumps(value)}" for key, value in named.items() if value)]
    config = load_config(find_config(arguments.config), overrides)
    if arguments.plan:
        print_plan(config)
        return 0

    from raysed.api import run_config

    return code_of(run_config(config, verbose=True, take_over=arguments.take_over, starts_ray=True))
