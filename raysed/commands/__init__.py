"""The command line: one file per command, shared by `raysed …` and the scripts in jobs/."""

import argparse
from typing import Any

_SHARED: dict[str, dict[str, Any]] = {
    "--set": {"dest": "overrides", "action": "append", "default": [], "metavar": "a.b=c", "help": "override a setting"},
    "--storage": {"default": "runs", "help": "directory or URI that holds the run directories"},
    "--address": {"help": "address of the Ray cluster to use; auto: the one on this machine; default: RAY_ADDRESS"},
    "--allow-worse": {
        "action": "store_true",
        "help": "export the model even if it is worse than its encoder or TF-IDF",
    },
}


def parser_of(description: str | None, *shared: str) -> argparse.ArgumentParser:
    """Return a parser with options that several commands have."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in shared:
        result.add_argument(option, **_SHARED[option])
    return result
