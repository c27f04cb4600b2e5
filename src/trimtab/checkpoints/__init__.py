"""Checkpoints on disk: what is whole, what is healthy, what to go back to. No torch here."""
