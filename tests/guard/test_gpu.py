"""What only a GPU shows; `TRIMTAB_TEST_DEVICE=cuda` runs the other tests of the guard there, too."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

from tests.guard.tiny import DEVICE, Tiny, events_of, guard_of, make
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import Training

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


def test_a_copy_lies_in_pinned_memory_whatever_its_size() -> None:
    fits, beside = (torch.randn(n, device="cuda") for n in (1 << 20, (1 << 20) + 1))
    copies = clone([fits, beside])
    assert all(c.is_pinned() for c in copies)
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
    command = [sys.executable, "-c", CPU_RUN, str(tmp_path / "run")]
    on_cpu = {**os.environ, "TRIMTAB_TEST_DEVICE": "cpu"}
    done = subprocess.run(command, check=False, env=on_cpu)
    assert done.returncode == 0


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("wrapped", ["ddp", "fsdp"])
def test_a_rank_takes_weights_back_that_were_blown_up(tmp_path: Path, wrapped: str) -> None:
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        s = make(schedule="none", dropout=0.0)
        if wrapped == "fsdp":
            fsdp.fully_shard(s.model.hidden)
            fsdp.fully_shard(s.model)
        else:
            s.model = cast("Tiny", DistributedDataParallel(s.model))
        s.optimizer = torch.optim.AdamW(s.model.parameters(), lr=1e-3)
        guard = guard_of(s, tmp_path / "run", steps=320, mode="act")
        losses, blown = [], False
        for batch in guard:
            if guard.step_number == 200 and not blown:
                blown = True
                with torch.no_grad():
                    for parameter in s.model.parameters():
                        parameter.mul_(100)
            loss = s.loss(batch)
            guard.backward(loss)
            guard.step()
            losses.append(float(loss.detach()))
        assert "roll-back" in str([e.data for e in events_of(tmp_path / "run", "action")])
        assert max(losses) > 10
        assert max(losses[-20:]) < 2.6
    finally:
        dist.destroy_process_group()
