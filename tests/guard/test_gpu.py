"""What only a GPU shows; `TRIMTAB_TEST_DEVICE=cuda` runs the other tests of the guard there, too."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import Training

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


def test_a_copy_lies_in_pinned_memory_where_little_of_it_is_wasted() -> None:
    fits, wastes = (torch.randn(n, device="cuda") for n in (1 << 20, (1 << 20) + 1))
    copies = clone([fits, wastes])
    assert [c.is_pinned() for c in copies] == [True, False]
    assert torch.equal(copies[0], fits.cpu())


def test_a_state_that_is_put_back_takes_no_room_beside_the_one_it_replaces() -> None:
    model = nn.Linear(2048, 2048, bias=False, device="cuda")
    training = Training(model, torch.optim.AdamW(model.parameters(), fused=True))
    model(torch.randn(4, 2048, device="cuda")).sum().backward()
    training.optimizer.step()
    kept = clone(training.state())
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training.load(kept)
    assert torch.cuda.max_memory_allocated() - before < 0.5 * model.weight.nbytes
    assert all(torch.equal(v.cpu(), kept["model"][k]) for k, v in model.state_dict().items())


CPU_RUN = """
import sys, torch
from pathlib import Path
from tests.guard.tiny import guard_of, make, train_guarded
s = make()
train_guarded(s, guard_of(s, Path(sys.argv[1]), steps=3, mode="act"))
assert not torch.cuda.is_initialized()
"""


def test_a_run_on_the_cpu_starts_no_cuda(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CPU_RUN, str(tmp_path / "run")], check=False)
    assert done.returncode == 0
