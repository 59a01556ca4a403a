"""The version, which is also known where raysed is not installed: a cluster gets it with the job."""

__version__ = "0.1.0"
