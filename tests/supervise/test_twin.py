"""A changed command tried beside: what it shows, and what it leaves alone."""

import sys
from pathlib import Path

import pytest

from trimtab.supervise.resume import Restore, find_framework, resumed
from trimtab.supervise.twin import try_beside, twin_command

ROWS = "import sys,time\nfor s in range(141, 151):\n  print(f'step {s} loss 2.5 lr 5e-4', flush=True)\n"


@pytest.mark.parametrize(
    ("argv", "name", "looked_for"),
    [
        (("pretrain_gpt.py", "--save", "c", "--load", "c"), "iter_0000140", "iter_0000140"),
        (("train.py", "--out_dir=c"), "ckpt.pt", "ckpt.pt"),
        (("t.py", "--dump_folder", "c"), "step-140", "checkpoint/step-140"),
        (("run_clm.py", "--output_dir", "c"), "checkpoint-140", ""),
    ],
)
def test_twin_command_saves_and_looks_in_a_folder_of_its_own(
    tmp_path: Path, argv: tuple[str, ...], name: str, looked_for: str
) -> None:
    parent, own = tmp_path / name, tmp_path / "own"
    own.mkdir()
    parent.write_text("weights")
    framework = find_framework(argv)
    assert framework is not None
    restore = Restore(step=140, path=str(parent), layout=framework.layouts[0])
    twin = twin_command(resumed(argv, framework, restore), framework, restore, own)
    assert not isinstance(twin, str)
    assert not any(word in ("c", "--out_dir=c") for word in twin)
    assert sum(word in (str(own), f"--out_dir={own}") for word in twin) >= 1
    if looked_for:
        assert (own / looked_for).read_text() == "weights"
    if framework.name == "megatron":
        assert (own / "latest_checkpointed_iteration.txt").read_text() == "140"


def test_twin_command_says_why_a_command_has_to_stay_untried(tmp_path: Path) -> None:
    restore = Restore(step=1, path="c", layout="files")
    assert "no flag" in twin_command(("python", "t.py"), None, restore, tmp_path)
    hugging = find_framework(("t.py", "--output_dir", "c"))
    assert "no checkpoint" in twin_command(("t.py",), hugging, None, tmp_path)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (ROWS + "time.sleep(60)", ""),
        ("raise SystemExit('t.py: error: unrecognized arguments: --rate')", "unrecognized"),
        (ROWS + "open(sys.argv[1], 'a').write('x'); time.sleep(60)", "it wrote to"),
    ],
)
def test_try_beside_ends_after_two_rows_and_tells_what_it_showed(
    tmp_path: Path, program: str, expected: str
) -> None:
    parent = tmp_path / "checkpoint"
    parent.write_text("weights")
    told = try_beside(
        (sys.executable, "-S", "-c", program, str(parent)),
        tmp_path,
        parent=parent,
        environment={},
        limit_s=20.0,
        grace_s=5.0,
        aborted=lambda: False,
    )
    if expected:
        assert expected in told.refused
    else:
        assert told.first is not None
        assert (told.first.step, told.first.rate) == (141.0, 5e-4)
