"""What trimtab keeps when the machine under it fails: faults of calls, kills, damaged files.

One process loads torch once; each case runs in a child forked from it (`forks`), in which the calls
of the input and output layer are counted and made to fail (`calls`). Results are kept by seed in a
JSON-lines file (`totals`), so that a run that was stopped goes on where it was.
"""
