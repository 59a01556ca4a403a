"""How threads should wait for each other: training alone, and beside one busy program, under several settings.

    python benchmarks/spinning.py [TURNS]

Prints, for encoders of 3 and 22 million weights, the seconds of some updates of 16 sentences in a process of its own,
relative to the same without settings and alone; medians and ranges over turns, which alternate.
"""

import os
import statistics
import subprocess
import sys
import time

SETTINGS = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin 5,000": {"GOMP_SPINCOUNT": "5000"},
    "spin 20,000": {"GOMP_SPINCOUNT": "20000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
UPDATES = {"small": 60, "larger": 12}


def work(name: str) -> None:
    """Trains, and prints the seconds of it."""
    import precision

    from raysed.data.tokens import pack

    encoder, batch = getattr(precision, name)(), pack(precision.drawn(16), row_tokens=128)
    for turn in range(2):
        began = time.perf_counter()
        for _ in range(UPDATES[name] if turn else 3):
            precision.step(encoder, batch, bf16=False)
    print(time.perf_counter() - began)


def seconds(name: str, settings: dict[str, str], busy: bool) -> float:
    """Returns the seconds of the work in a process with these settings, beside a busy program or alone."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        environment = {**os.environ, **settings}
        return float(subprocess.check_output([sys.executable, __file__, "--work", name], env=environment, text=True))
    finally:
        if other:
            other.kill()
            other.wait()


def main(turns: int) -> None:
    """Measures all settings in turns."""
    for name in UPDATES:
        found = {(label, busy): [] for label in SETTINGS for busy in (False, True)}
        for _ in range(turns):
            for (label, busy), values in found.items():
                values.append(seconds(name, SETTINGS[label], busy))
        for (label, busy), values in found.items():
            ratios = [value / base for value, base in zip(values, found["default", False])]
            text = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{name}, {label}, {'beside a busy program' if busy else 'alone'}: {text}", flush=True)


if __name__ == "__main__":
    work(sys.argv[2]) if sys.argv[1:2] == ["--work"] else main(int(sys.argv[1]) if sys.argv[1:] else 5)
