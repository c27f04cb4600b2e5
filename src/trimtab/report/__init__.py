"""The account of a run, told: terminal, one HTML page, static pictures."""
