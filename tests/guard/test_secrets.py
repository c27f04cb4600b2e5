"""What a guarded run writes of its settings holds no secret."""

import json
from pathlib import Path

from trimtab.chronicle.rundir import RunDirectory
from trimtab.guard.recording.recorder import Recorder
from trimtab.masking import MASK

SECRET = "Zx9secretQ7vaLue4"


def test_the_run_directory_holds_no_secret(tmp_path: Path) -> None:
    recorder = Recorder(RunDirectory(tmp_path))
    settings = {
        "api_key": SECRET,
        "hub": f"https://me:{SECRET}@host/x",
        "argv": ["train.py", "--wandb-api-key", SECRET, "--num-tokens", "4096"],
        "num_tokens": 4096,
        "eos_token": "<eos>",
    }
    recorder.settings(settings)
    recorder.add_setting("hub_token", SECRET)
    recorder.event("start", step=0, settings=settings, environment={"HF_TOKEN": SECRET})
    recorder.close()
    told = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert f'api_key = "{MASK}"' in told
    assert f'hub_token = "{MASK}"' in told
    assert "num_tokens = 4096" in told
    event = json.loads((tmp_path / "journal.jsonl").read_text(encoding="utf-8"))
    assert event["settings"]["argv"] == [
        "train.py",
        "--wandb-api-key",
        MASK,
        "--num-tokens",
        "4096",
    ]
    assert event["environment"] == {"HF_TOKEN": MASK}
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
