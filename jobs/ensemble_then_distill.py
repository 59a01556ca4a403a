"""Trains an ensemble, distils its mean into one model, calibrates it, and reports what helped.

On this machine:  python jobs/ensemble_then_distill.py
On a cluster:     ray job submit --working-dir . -- python jobs/ensemble_then_distill.py --storage s3://bucket/runs

The same command continues a run that was stopped, and does nothing for one that is complete.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # an uploaded working directory is not installed

from raysed.cli import main_of


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--config", default="quickstart", help="a name from jobs/configs/ or a YAML file")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting"
    )
    result.add_argument("--storage", help="directory or URI under which run directories lie")
    result.add_argument("--run", help="name of the run")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Runs the pipeline."""
    from raysed.config import find_config, load_config
    from raysed.plan.consistency import check_settings

    named = {"storage": arguments.storage, "run": arguments.run}
    overrides = [*arguments.overrides, *(f"{key}={json.dumps(value)}" for key, value in named.items() if value)]
    config = load_config(find_config(arguments.config, Path(__file__).parent / "configs"), overrides)
    check_settings(config)  # before the heavy libraries, which take seconds, and Ray

    from raysed.pipeline import run

    run(config)


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))
