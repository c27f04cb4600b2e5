"""Rules that read rows of signals and say what is wrong, one rule in one file.

`contract` says what a detector is, `judge` runs them all; `excerpt` is for a handful of rows.
"""
