"""torchtitan's own `train.main` on the CPU, on a tiny Llama and real text, with a fault to plant.

    python titan_job.py --module benchmarks.drill.titan_job --config tiny --dump_folder OUT ...

Loop, loader, checkpoints and flags are torchtitan's. What is planted is told by the environment:
DRILL_FAULT, at DRILL_AT. It wants torchtitan 0.3.0's own environment, see docs/recipes.
"""

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from tests.integrations import titan_lab as lab

FAULT = os.environ.get("DRILL_FAULT", "")
AT = int(os.environ.get("DRILL_AT", "150"))
WINDOW = 24
_STEP_S = 0.25


def tiny() -> Any:
    """What a registry gives: torchtitan's `Trainer.Config`."""
    files = {"enable": True, "interval": 20, "keep_latest_k": 0, "last_save_model_only": False}
    chosen = lab.config(Path("outputs"), steps=260, checkpoint=files)
    chosen.lr_scheduler.decay_ratio = 0.0
    if FAULT == "data":
        chosen.dataloader.bad = (AT, AT + WINDOW)
    return chosen


def _plant(trainer: Any, once: Path) -> None:
    """Let the fault happen after its step."""
    own = trainer.train_step

    def train_step(*given: Any, **named: Any) -> Any:
        own(*given, **named)
        time.sleep(_STEP_S)  # a start costs some tens of steps, as in a run of days
        if trainer.step != AT or FAULT not in ("crash", "hang", "nan") or once.exists():
            return
        once.write_text(str(time.time()))
        if FAULT == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif FAULT == "hang":
            time.sleep(3600)
        with torch.no_grad():
            next(iter(trainer.model_parts[0].parameters())).fill_(math.nan)

    trainer.train_step = train_step


def main() -> None:
    """Train as torchtitan's `train.main` does, and write the held-out loss down."""
    from torchtitan.config import ConfigManager
    from torchtitan.tools.logging import init_logger

    init_logger()
    with lab.process_group():
        chosen = ConfigManager().parse_args()
        trainer = chosen.build()
        place = Path(chosen.dump_folder).parent
        _plant(trainer, place / "happened")
        trainer.train()
        found = lab.Fit(trainer, place)
        found.look()
        trainer.close()
        (place / "result.json").write_text(json.dumps({"loss": found.validation}))


if __name__ == "__main__":
    main()
