"""Discover plug-ins: each is one file of a package and listed nowhere else, see CONTRIBUTING.md.

Stages and calibrations are named after their files, so listing calibrations does not load torch. Their packages are
imported by name, because they are layers above the modules that use them (settings, recipes).
"""

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

_STAGES, _CALIBRATIONS = "raysed.train.stages", "raysed.train.calibrations"


def discover(package: str, base: str | type) -> dict[str, Any]:
    """Return the plug-in of each file of a package, by file name in alphabetical order.

    A plug-in is the file's constant called `base`, or its class that derives from `base` and is not abstract.
    """
    found = {}
    for name in _names(package):
        module = importlib.import_module(f"{package}.{name}")
        if isinstance(base, str):
            found[name] = getattr(module, base)
            continue
        for value in vars(module).values():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if is_own and issubclass(value, base) and not inspect.isabstract(value):
                found[name] = value
    return found


@cache
def stages() -> dict[str, Any]:
    """Return all stages by name, see `raysed.train.stage.Stage`."""
    return discover(_STAGES, "STAGE")


def stages_of_pairs() -> tuple[str, ...]:
    """Return the names of the stages that train on labelled pairs."""
    return tuple(name for name, stage in stages().items() if stage.labels)


@cache
def calibrations() -> dict[str, Any]:
    """Return all calibrations by name, see `raysed.train.calibrations.Calibration`."""
    return discover(_CALIBRATIONS, "CALIBRATION")


@cache
def calibration_names() -> tuple[str, ...]:
    """Return the names of all calibrations."""
    return _names(_CALIBRATIONS)


def _names(package: str) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)))
