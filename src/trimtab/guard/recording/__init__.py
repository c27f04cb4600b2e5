"""What is written to the run directory."""
