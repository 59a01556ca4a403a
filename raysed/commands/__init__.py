"""The command line: one file per command, the same code for `raysed …` and for the scripts in jobs/."""
