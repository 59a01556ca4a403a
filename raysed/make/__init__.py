"""Makers: plain functions that make one artefact each and know nothing of Ray or the run as a whole."""
