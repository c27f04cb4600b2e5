"""What happened to a run, written down: journal, run directory, logbook."""
