"""The written history of a run: journal, run directory, logbook."""
