"""Before the run: read a training config, hold it against what went wrong elsewhere, and say what to type instead."""
