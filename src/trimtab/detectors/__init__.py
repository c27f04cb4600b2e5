"""Rules that read rows of signals and say what is wrong, one rule in one file.

`contract` says what a detector is, `judge` runs them all; `excerpt`, `hindsight`
and `memorised` look at a whole record and see what no streaming rule can.
"""
