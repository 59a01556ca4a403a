"""Says whether two runs came out the same: every tensor, array and table bit by bit, and report.json but for times.

    python benchmarks/compare_runs.py runs/before runs/after

For a change that should alter no number: run the same config with the same seed before and after it, on one machine.
Exit code 1 where something differs.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

ARRAYS = (".safetensors", ".npy", ".parquet")
MAY_DIFFER = ("run", "timings", "environment", "config")
"""Keys of report.json that name the place, the time or the versions."""


def arrays(run: Path) -> dict[str, str]:
    """Returns the digest of every file of numbers by its path in the run directory."""
    files = sorted(path for path in run.glob("[!.]*/**/*") if path.suffix in ARRAYS)
    return {
        re.sub("attempt-[0-9a-f]{12}/", "", str(path.relative_to(run))): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def differences(first: Path, second: Path) -> list[str]:
    """Returns what differs: names of files, and keys of the reports."""
    of_first, of_second = arrays(first), arrays(second)
    names = [name for name in {**of_first, **of_second} if of_first.get(name) != of_second.get(name)]
    reports = [json.loads((run / "report.json").read_text(encoding="utf-8")) for run in (first, second)]
    keys = [key for key in {**reports[0], **reports[1]} if key not in MAY_DIFFER]
    return names + [f"report.json: {key}" for key in keys if reports[0].get(key) != reports[1].get(key)]


def main() -> int:
    """Compares the two runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path, help="run directories")
    first, second = parser.parse_args().runs
    found = differences(first, second)
    print("\n".join(found) or f"the same: {len(arrays(first))} files of numbers, and the reports")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
