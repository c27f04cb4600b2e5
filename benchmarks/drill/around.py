"""`supervise` around training scripts of other frameworks: five faults each, against a twin."""

import importlib.util
import itertools
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.drill.measure import versions
from trimtab.chronicle.journal import Event, read_journal
from trimtab.errors import ChronicleError, ConfigError
from trimtab.supervise.processes import TOKEN_NAME, terminate

__all__ = ["AROUND", "AROUND_FAULTS", "Around", "around", "around_text"]

AROUND_FAULTS = ("crash", "hang", "nan", "data", "rate")
_HERE = Path(__file__).parent
_TITAN_RATE = "--optimizer.param-groups.0.optimizer-kwargs.lr"
_POLICY = """\
[supervise]
first_backoff_s = 0.1
look_every_s = 0.2
judge_every_s = 0.5
stop_grace_s = 5.0
[policy]
mode = "act"
"""


@dataclass(frozen=True, kw_only=True)
class _Script:
    """A training script, and how a person starts it."""

    file: str
    sound: tuple[str, ...]
    """Its flags; {out} is the folder of the checkpoints."""
    fault: tuple[str, ...]
    """Flags that plant the fault {fault}."""
    first_part: tuple[str, ...]
    """Flags that end a run early, for one that is resumed."""
    raised: tuple[str, ...]
    """Flags of a resumed start whose rate jumps."""
    needs: str = "torch"
    """Package without which it does not run."""
    whole: tuple[str, ...] = ()
    """Flags of a resumed start that is sound; empty: the twin is the run that was never broken."""


AROUND = {
    "hf": _Script(
        file="hf_job.py",
        needs="transformers",
        sound=(
            *("--output_dir", "{out}", "--max_steps", "260", "--logging_steps", "1"),
            *("--save_steps", "20", "--per_device_train_batch_size", "8", "--report_to", "none"),
            *("--learning_rate", "3e-3", "--lr_scheduler_type", "constant", "--use_cpu", "True"),
            *("--disable_tqdm", "True", "--save_total_limit", "20"),
        ),
        fault=("--fault", "{fault}"),
        first_part=("--max_steps", "120"),
        raised=("--start_from", "{out}/checkpoint-120", "--learning_rate", "0.3"),
        whole=("--start_from", "{out}/checkpoint-120"),
    ),
    "nanogpt": _Script(
        file="nanogpt_job.py",
        sound=("--out_dir={out}", "--max_iters=400", "--learning_rate=1e-2"),
        fault=("--fault={fault}",),
        first_part=("--max_iters=140",),
        raised=("--init_from=resume", "--learning_rate=1.0"),
    ),
    "megatron": _Script(
        file="megatron_job.py",
        needs="numpy",
        sound=(
            *("--tensor-model-parallel-size", "1", "--save", "{out}", "--load", "{out}"),
            *("--train-iters", "1000", "--lr", "0.05"),
        ),
        fault=("--fault", "{fault}"),
        first_part=("--train-iters", "140"),
        raised=("--lr", "5.0", "--override-opt_param-scheduler"),
    ),
    "deepspeed": _Script(
        file="deepspeed_job.py",
        needs="deepspeed",
        sound=(
            *("--deepspeed", "--save_dir", "{out}", "--lr", "1e-3", "--seed", "1"),
            *("--steps", "300"),
        ),
        fault=("--fault", "{fault}"),
        first_part=("--steps", "140"),
        raised=("--load_dir", "{out}", "--ckpt_id", "global_step140", "--lr", "0.1"),
    ),
    "torchtitan": _Script(
        file="titan_job.py",
        needs="torchtitan",
        sound=(
            *("--module", "benchmarks.drill.titan_job", "--config", "tiny"),
            *("--dump_folder", "{out}", _TITAN_RATE, "4e-3"),
        ),
        fault=("--dump_folder", "{out}"),
        first_part=("--training.steps", "140"),
        raised=(_TITAN_RATE, "0.4"),
    ),
}
"""Hugging Face's Trainer; a script after nanoGPT; Megatron played by its log and flags; DeepSpeed's
engine as its first page uses it; torchtitan's own `train.main`, in its own environment."""


_NEAR, _GAP = 1.01, 0.9
"""Final loss over that of the twin, and share of the gap that counts as closed."""


@dataclass(frozen=True, kw_only=True)
class Around:
    """What became of one fault in one script."""

    script: str
    fault: str
    finished: bool
    ratio: float | None
    """Held-out loss at the end over that of the twin; None: it did not get there."""
    unsupervised: float | None
    """The same without the supervisor; None: it did not get there."""
    restarts: int
    answers: str
    took_s: float

    @property
    def near(self) -> bool:
        """Whether the run ends as its twin."""
        if self.ratio is None:
            return False
        alone = self.unsupervised
        return self.ratio <= (_NEAR if alone is None else max(_NEAR, alone - _GAP * (alone - 1)))


def around(
    scripts: Sequence[str], faults: Sequence[str], *, limit_s: float, jobs: int = 1
) -> list[Around]:
    """Plant faults in scripts, each with the supervisor, and those of the numbers without it, too.

    Raises:
        ConfigError: A script's framework is not installed.

    Cost: 20 to 120 s each, of one core.
    """
    for name in scripts:
        if importlib.util.find_spec(AROUND[name].needs) is None:
            raise ConfigError(
                f"drill: {name} needs {AROUND[name].needs}; install it, or leave {name}"
            )
    with (
        tempfile.TemporaryDirectory(prefix="around-", ignore_cleanup_errors=True) as made,
        ThreadPoolExecutor(jobs) as pool,
    ):
        root = Path(made)

        def twin(name: str) -> float | None:
            return _loss_of(root / name, _plain(name, root / name), limit_s)

        twins = dict(zip(scripts, pool.map(twin, scripts), strict=True))

        def one(case: tuple[str, str]) -> Around:
            name, fault = case
            told = _one(name, fault, root / f"{name}-{fault}", twins[name], limit_s)
            sys.stderr.write(f"{_line(told)}\n")
            return told

        return list(pool.map(one, itertools.product(scripts, faults)))


def _filled(words: Sequence[str], folder: Path, fault: str = "") -> list[str]:
    return [word.format(out=folder / "out", fault=fault) for word in words]


def _plain(name: str, folder: Path, *more: str) -> list[str]:
    script = AROUND[name]
    return [sys.executable, str(_HERE / script.file), *_filled([*script.sound, *more], folder)]


def _one(name: str, fault: str, root: Path, twin: float | None, limit_s: float) -> Around:
    script = AROUND[name]
    alone, folder, run = root / "alone", root / "job", root / "run"
    for place in (alone, folder):
        place.mkdir(parents=True)
    policy = root / "policy.toml"
    policy.write_text(_POLICY)
    own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(run)]
    own += ["--policy", str(policy), "--"]
    commands = {}
    for place in (alone, folder):
        if fault != "rate":
            commands[place] = _plain(name, place, *_filled(script.fault, place, fault))
            continue
        first = _plain(name, place, *_filled(script.first_part, place))
        _run([*own, *first] if place == folder else first, place, limit_s)
        (place / "result.json").unlink(missing_ok=True)
        commands[place] = _plain(name, place, *script.raised)
    if fault == "rate" and script.whole:
        sound = root / "sound"
        sound.mkdir()
        _run(_plain(name, sound, *script.first_part), sound, limit_s)
        twin = _loss_of(sound, _plain(name, sound, *script.whole), limit_s)
    without = None
    if fault in ("data", "rate"):
        without = _loss_of(alone, commands[alone], limit_s, fault)
    began = time.monotonic()
    loss = _loss_of(folder, [*own, *commands[folder]], limit_s, fault)
    events = _events(run)
    return Around(
        script=name,
        fault=fault,
        finished=loss is not None,
        ratio=None if loss is None or not twin else loss / twin,
        unsupervised=None if without is None or not twin else without / twin,
        restarts=sum(e.event == "restart" for e in events),
        answers="; ".join(_answers(events)) or "none",
        took_s=time.monotonic() - began,
    )


def _events(run: Path) -> tuple[Event, ...]:
    try:
        return read_journal(run / "journal.jsonl")[0]
    except ChronicleError:
        return ()


def _answers(events: Sequence[Event]) -> list[str]:
    told = []
    for event in events:
        d = event.data
        if event.event == "decision":
            data = ", other data" if d.get("other_data") else ""
            told.append(
                f"{d.get('kind')}: to {d.get('to_step')}, rate x {d.get('rate_factor'):g}{data}"
            )
        elif event.event == "restart" and d.get("class") != "numeric":
            told.append(f"{d.get('class')}: {Path(str(d.get('checkpoint'))).name}")
        elif event.event == "gave-up":
            told.append(f"gave up: {d.get('class')}")
    return told


def _loss_of(folder: Path, argv: Sequence[str], limit_s: float, fault: str = "") -> float | None:
    """Return the held-out loss of a run at its end; None where it did not get there."""
    folder.mkdir(exist_ok=True)
    _run(argv, folder, limit_s, fault)
    try:
        loss = float(json.loads((folder / "result.json").read_text())["loss"])
    except (OSError, ValueError):
        return None
    return loss if math.isfinite(loss) else None


def _run(argv: Sequence[str], folder: Path, limit_s: float, fault: str = "") -> None:
    token = f"around-{secrets.token_hex(8)}"
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    quiet |= {"CUDA_VISIBLE_DEVICES": "", "DRILL_FAULT": fault}
    with (folder / "output").open("ab") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=file, env={**os.environ, **quiet, TOKEN_NAME: token}
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            with_grace = 10.0
            try:
                process.wait(with_grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        finally:
            terminate(token, process.pid, grace_s=1.0)


def around_text(found: Sequence[Around]) -> str:
    """Return the table."""
    head = f"{'script':10}{'fault':7}{'ends':6}{'ratio':>8}{'alone':>8}{'restarts':>10}  answers"
    good = sum(a.finished for a in found)
    near = sum(a.near for a in found)
    rows = [_line(a) for a in found]
    return "\n".join(
        [
            head,
            *rows,
            f"{good} of {len(found)} reach the end, {near} within {_NEAR:g} x the twin, or with {_GAP:g} of"
            " the gap closed",
            versions(*(AROUND[name].needs for name in dict.fromkeys(a.script for a in found))),
        ]
    )


def _line(a: Around) -> str:
    def shown(ratio: float | None) -> str:
        return "–" if ratio is None else f"{ratio:.4f}"

    return (
        f"{a.script:10}{a.fault:7}{'yes' if a.finished else 'NO':6}{shown(a.ratio):>8}"
        f"{shown(a.unsupervised):>8}{a.restarts:>10}  {a.answers} · {a.took_s:.0f} s"
    )
