"""The guard: stands in a training loop, records, judges, and, when allowed, recovers. Needs torch.

The rooms, each of which imports only from those before it:

- `distributed/`: processes that train together, and one step of all of them as one.
- `recording/`: writes the run down; the fault barrier, which keeps a fault of ours from stopping
  the run.
- `probes/`: measure activations, gradients, moments and updates.
- `state/`: what decides the future of the run; captured, put back, saved, resumed.
- `data/`: the order of the data, which can go back and leave data out.
- `step/`: one optimizer step: clip, pool over ranks, apply or skip, make the row.
- `recovery/`: decides what is done about trouble, and carries it out.
- `control/`: what people do by hand, `guard.control`.
- `loop/`: in which order all of it happens; `loop/training_loop.py` shows it in one place.

`guard.py` holds `Guard`, whose methods hand on to these parts.
"""

from trimtab.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtraError("The guard", "torch") from None

from trimtab.guard.guard import Guard
from trimtab.guard.probes.overflow import find_overflow
from trimtab.guard.recording.environment import seed_all

__all__ = ["Guard", "find_overflow", "seed_all"]
