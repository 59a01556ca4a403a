"""Speeds are compared in turns, on the same texts."""

from types import SimpleNamespace

import numpy as np
import pytest

from raysed.make import speeds
from raysed.store.text import times


class Machine:
    """A clock, and models that take time on it; `load` slows down whatever runs, round by round."""

    def __init__(self, monkeypatch, load=()):
        self.now, self.load, self.rounds, self.embedded = 0.0, list(load), 0, []
        monkeypatch.setattr(speeds.time, "process_time", lambda: self.now)

    def model(self, seconds):
        def embed(texts, role):
            self.embedded.append(len(texts))
            self.now += len(texts) * seconds * (self.load.pop(0) if self.load else 1.0)
            return np.zeros((len(texts), 2))

        return embed


def texts(count):
    return SimpleNamespace(sentences=[f"text {i}" for i in range(count)], roles=[""] * count)


def test_the_median_of_rounds_with_their_range(monkeypatch):
    warm = [1.0] * 4
    machine = Machine(monkeypatch, [*warm, 1.0, 1.0, 1.2, 1.0, 1.0, 1.2, 5.0, 5.0, 1.1, 1.0])
    found = speeds.relative_speed(machine.model(0.002), machine.model(0.001), texts(900), "cpu")
    assert [found[name] for name in ("ratio", "low", "high")] == pytest.approx([2.0, 2 / 1.2, 2.4])
    assert set(machine.embedded[4:]) == {200} and len(machine.embedded) == 4 + 2 * 5
    assert times(found) == "2.00x (1.67 to 2.40)"


def test_rounds_that_differ_too_much_say_nothing(monkeypatch):
    machine = Machine(monkeypatch, [1.0] * 4 + [1.0, 1.0] * 4 + [1.6, 1.0])
    assert speeds.relative_speed(machine.model(0.002), machine.model(0.001), texts(300), "cpu") is None
    assert times(None) == "-"


@pytest.mark.parametrize(("seconds", "comparisons"), [(0.02, 1), (1.0, 1), (0.02, 5), (60.0, 2)])
def test_slow_models_embed_fewer_texts(monkeypatch, seconds, comparisons):
    machine = Machine(monkeypatch)
    before = speeds.relative_speed(machine.model(seconds), machine.model(seconds), texts(300), "cpu", comparisons)
    assert before["ratio"] == 1.0
    rounds = machine.embedded[4:]
    assert len(set(rounds)) == 1 and (rounds[0] == 1 or 2 * seconds * sum(rounds) / 2 <= 30 / comparisons)
