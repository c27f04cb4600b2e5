"""Loaded by the fork server alone: what torch imports at the first step is imported once, here.

No backward pass: a process in which one has run cannot be forked.
"""

import tempfile
from pathlib import Path

import torch

from tests.guard import even_steps
from tests.guard.tiny import guard_of, make

torch.set_num_threads(1)
even_steps.hold()
with tempfile.TemporaryDirectory() as folder:
    s = make()
    for parameter in s.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    s.optimizer.step()
    guard = guard_of(s, Path(folder) / "run", steps=1)
    guard.checkpoint()
    guard.close()
