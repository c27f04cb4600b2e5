"""Preflight from Python: the result of `preflight_config` is the document of the command."""

import json
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.config_rules.budget import Machine
from trimtab.config_rules.preflight import preflight_config
from trimtab.errors import ConfigError

SCRIPT = (
    "pretrain_gpt.py --num-layers 64 --hidden-size 11600 --num-attention-heads 80"
    " --micro-batch-size 1 --global-batch-size 2048 --seq-length 2048 --lr 6e-5 --fp16"
    " --train-iters 100000 --lr-warmup-iters 100 --init-method-std 0.02\n"
)


def configs(folder: Path) -> list[Path]:
    script, trainer, broken = folder / "run.sh", folder / "train.yaml", folder / "broken.yaml"
    script.write_text(SCRIPT)
    trainer.write_text("model_name_or_path: x/y\nlearning_rate: 3.0e-5\noutput_dir: out\n")
    broken.write_text("a: [1\n")
    return [script, trainer, broken]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), {}),
        (("--phase", "mid"), {"phase": "mid"}),
        (("--like", "gpt3"), {"like": "gpt3"}),
        (("--devices", "8", "--device-gib", "80"), {"machine": Machine(devices=8, device_gib=80)}),
    ],
)
def test_preflight_config_gives_the_document_of_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    options: dict[str, object],
) -> None:
    paths = configs(tmp_path)
    code = main(["preflight", "--json", *flags, *map(str, paths)])
    printed = json.loads(capsys.readouterr().out)
    result = preflight_config(*paths, **options)  # type: ignore[arg-type]
    assert json.loads(json.dumps(result.to_dict())) == printed
    assert result.exit_code == code == 2
    assert result.verdict == "unreadable"
    assert [e["path"] for e in result.errors] == [str(paths[2])]


def test_preflight_config_verdict_is_the_worst_severity(tmp_path: Path) -> None:
    script, *_ = configs(tmp_path)
    result = preflight_config(str(script))
    assert "L01" in {f.rule for f in result.findings}
    assert (result.verdict, result.exit_code) == ("error", 1)


def test_preflight_config_compares_with_another_config(tmp_path: Path) -> None:
    script, trainer, _ = configs(tmp_path)
    (report,) = preflight_config(script, against=trainer).configs
    assert report.deviation is not None
    assert report.deviation.to == str(trainer)
    assert "lr" in {d.setting for d in report.deviation.settings}


def test_preflight_config_refuses_nothing_and_impossible_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config"):
        preflight_config()
    with pytest.raises(ConfigError, match="params"):
        preflight_config(configs(tmp_path)[0], machine=Machine(params=-1.0))
