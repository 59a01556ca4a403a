"""The version, also for clusters that get the package with the job instead of installing it."""

__version__ = "0.1.0"
