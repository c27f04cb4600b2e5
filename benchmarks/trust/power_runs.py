"""The runs whose power is cut: small, real, guarded trainings, and how they are gone on with."""

from __future__ import annotations

import hashlib
import io
import math
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from trimtab.chronicle.journal import read_journal
from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy
from trimtab.plan.skiplist import SkipList, SkipSource, write_skip_list
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RUNS", "End", "Run", "copies_of", "go_on", "run_directory"]

_VOCABULARY = 13
_LENGTH = 6
_BATCH = 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, how it is guarded, and where its processes end."""

    name: str
    title: str
    steps: int
    stops: tuple[int, ...] = ()
    """Steps after which a process closes its guard, and the next one goes on."""
    mode: Mode = "act"
    save_every: int = 4
    background: bool = False
    copies: bool = False
    """Whether it has a second place."""
    loses_disk: bool = False
    """Whether the power cut takes the run directory too, so that the second place is all there
    is."""
    skip_list: bool = False
    bad: tuple[int, int] | None = None
    """First and last sample whose tokens are noise: the run is rolled back, and leaves them
    out."""
    samples: int = 120
    rate: float = 3e-3
    cuts_from_step: int = 0
    """Steps whose power is not cut: they are as those of another run."""
    weight: int = 1
    """Share of the states."""

    @property
    def policy(self) -> dict[str, Any]:
        """Settings of the guard."""
        return {
            "checkpoint_every_steps": self.save_every,
            "checkpoint_in_background": self.background,
            "snapshot_every_steps": 5,
            "checkpoints_kept": 3,
            "sync_rows_every_steps": 5,
            "sync_rows_every_s": 1e6,
        }


RUNS = (
    Run(
        name="observe",
        title="observe, a skip list, stopped and resumed",
        steps=18,
        stops=(9,),
        mode="observe",
        skip_list=True,
        weight=2,
    ),
    Run(
        name="background",
        title="saved in the background, with a second place",
        steps=16,
        stops=(7,),
        background=True,
        copies=True,
        weight=3,
    ),
    Run(
        name="disk-lost",
        title="the same, and the first disk is lost",
        steps=16,
        stops=(7,),
        background=True,
        copies=True,
        loses_disk=True,
    ),
    Run(
        name="rolled-back",
        title="rolled back by itself, checkpoints set aside",
        steps=135,
        save_every=5,
        bad=(400, 447),
        samples=4000,
        rate=1e-2,
        cuts_from_step=95,
        weight=2,
    ),
)


class _Sequences(Dataset[Tensor]):
    """Sample i is always the same: a counting sequence with a little noise."""

    def __init__(self, number: int, bad: tuple[int, int] | None) -> None:
        rows = torch.arange(number)[:, None] * 7 + torch.arange(_LENGTH + 1) * 3
        noise = torch.randint(0, 2, rows.shape, generator=torch.Generator().manual_seed(1))
        self.tokens = (rows + noise) % _VOCABULARY
        if bad is not None:
            part = self.tokens[bad[0] : bad[1] + 1]
            part.copy_(torch.randint(0, 13, part.shape, generator=torch.Generator().manual_seed(2)))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, 16)
        self.hidden = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(24)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(24, _VOCABULARY)

    def loss(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(functional.gelu(self.hidden(self.embedding(tokens[:, :-1]))))
        logits = self.output(self.dropout(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@dataclass
class End:
    """How a run ended."""

    began_at: int
    """Step that its last process began after."""
    skipped_at_first: tuple[tuple[int, int], ...] = ()
    """Samples left out, before that process trained."""
    losses: dict[int, str] = field(default_factory=dict)
    """Of each recorded step of the lineage that stayed, bit for bit."""
    state: str = ""
    """Checksum of weights, moments and random state."""
    skipped: tuple[tuple[int, int], ...] = ()
    faults: tuple[str, ...] = ()
    """Faults of trimtab's own in the journal."""


def run_directory(disk: Path) -> Path:
    """Return where the run directory lies on the disk that is watched."""
    return disk / "runs" / "job"


def copies_of(disk: Path) -> Path:
    """Return the folder of the second place; on the same disk model, so that it is cut too."""
    return disk / "copies"


def go_on(run: Run, disk: Path, *, stops: Sequence[int] = ()) -> End:
    """Start the run or go on with it, to its end; `stops`: processes that end on the way."""
    for stop in stops:
        _process(run, disk, until=stop)
    return _process(run, disk, until=None)


def _process(run: Run, disk: Path, *, until: int | None) -> End:
    torch.manual_seed(3)
    model = _Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.rate, foreach=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 5))
    loader = DataLoader(
        _Sequences(run.samples, run.bad), batch_size=_BATCH, shuffle=run.bad is None
    )
    root = run_directory(disk)
    guard = Guard(
        model,
        optimizer,
        data=loader,
        scheduler=scheduler,
        clip=1.0,
        steps=run.steps,
        run=root,
        mode=run.mode,
        policy=Policy(**run.policy, copy_to=str(copies_of(disk)) if run.copies else ""),
        say=lambda _line: None,
    )
    end = End(guard.step_number, guard.skipped_samples)
    if run.skip_list and guard.step_number == 0 and not guard.skipped_samples:
        guard.skip_list(_skip_list_file(run))
    for batch in guard:
        guard.backward(model.loss(batch))
        guard.step()
        if guard.step_number == until:
            break
    end.skipped = guard.skipped_samples
    guard.close()
    record = read_run_directory(root)
    rows = record.lineage_rows()
    values = record.columns["loss"].values[rows]
    end.losses = {
        int(step): float(value).hex()
        for step, value in zip(record.step[rows], values, strict=True)
        if not math.isnan(value)
    }
    end.state = _checksum([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()])
    events, _ = read_journal(root / "journal.jsonl")
    end.faults = tuple(str(e.data.get("error")) for e in events if e.event == "fault")
    return end


@cache
def _skip_list_file(run: Run) -> Path:
    """Write the list that the run is given, outside of what is watched."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-power-"))
    source = SkipSource(
        path="data", unit="sample", size=run.samples, ids=((3, 3), (10, 12), (40, 55))
    )
    write_skip_list(folder / "given.json", SkipList((source,)))
    return folder / "given.json"


def _checksum(state: object) -> str:
    digest = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, Tensor):
            buffer = io.BytesIO(value.detach().contiguous().numpy().tobytes())
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode() + buffer.getvalue())
        elif isinstance(value, dict):
            for key in value:
                digest.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for one in value:
                add(one)
        else:
            digest.update(repr(value).encode())

    add(state)
    return digest.hexdigest()
