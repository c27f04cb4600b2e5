"""From trouble to a remedy: triage, probe, trials, and what is kept."""
