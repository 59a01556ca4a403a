"""Stages and calibrations by name: each is one file of a package, found there and listed nowhere, see CONTRIBUTING.md.

Names are file names, so they are known without loading torch. These packages are layers above those that ask for them
(settings, recipes), so they are imported by name.
"""

import importlib
import pkgutil
from functools import cache
from typing import Any

_STAGES, _CALIBRATIONS = "raysed.train.stages", "raysed.train.calibrations"


@cache
def stages() -> dict[str, Any]:
    """Return all stages by name, in alphabetical order, see `raysed.train.stage.Stage`."""
    return {name: importlib.import_module(f"{_STAGES}.{name}").STAGE for name in _names(_STAGES)}


def stages_of_pairs() -> tuple[str, ...]:
    """Return the names of the stages that learn from labelled pairs."""
    return tuple(name for name, stage in stages().items() if stage.labels)


@cache
def calibrations() -> dict[str, Any]:
    """Return all calibrations by name, see `raysed.train.calibrations.Calibration`."""
    return {name: importlib.import_module(f"{_CALIBRATIONS}.{name}").CALIBRATION for name in calibration_names()}


def calibration_names() -> tuple[str, ...]:
    """Return the names of all calibrations, in alphabetical order."""
    return _names(_CALIBRATIONS)


@cache
def _names(package: str) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)))
