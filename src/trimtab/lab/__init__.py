"""Reproducible instabilities: real text, a small transformer, planted faults.

The tables (`scenarios`, `corruption`, `config`) and the text need numpy only; `model`, `data` and
`train` need the torch extra and are imported from their own modules, so that scenarios can be
listed on the base install.
"""
