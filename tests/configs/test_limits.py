"""Limits of the reader of configs: a small file never takes long, and is refused with a sentence."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.configs import flat_config, read_config
from trimtab.configs.sources import bounded
from trimtab.errors import ReadError


def aliases(num: int, wide: int) -> str:
    """Return YAML of `num` lines that stands for wide ** num values."""
    rows = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * wide)}]" for i in range(1, num)]
    return "lr: 0.1\na0: &a0 [x, x]\n" + "\n".join(rows) + "\n"


def merges(num: int) -> str:
    rows = [f"b{i}: &b{i}\n  x: *b{i - 1}\n  y: *b{i - 1}" for i in range(1, num)]
    return "b0: &b0 {lr: 0.1}\n" + "\n".join(rows) + "\n"


def takes_seconds(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("c.yaml", aliases(10, 9), "once aliases are expanded"),
        ("c.yaml", aliases(40, 2), "once aliases are expanded"),
        ("c.yaml", merges(55), "once aliases are expanded"),
        ("c.yaml", "- 1\n" * 500_000, "more than 100000 values"),
        ("c.yaml", "[" * 100_000, "nested more than 60 levels deep"),
        ("c.yaml", "".join(f"{' ' * i}a:\n" for i in range(100)), "nested more than 60 levels"),
        ("c.toml", "a." * 50_000 + "b = 1\n", "dotted"),
        ("c.toml", "\n".join("a." * 500 + f"k{i} = 1" for i in range(100)), "dotted"),
        ("c.toml", "lr = " + "[" * 5000 + "]" * 5000, "nested"),
        ("c.json", '{"a": ' * 100 + "1" + "}" * 100, "nested more than 60 levels deep"),
        ("c.json", '{"a": ' * 50_000 + "1" + "}" * 50_000, "nested too deeply"),
        ("c.ini", "a." * 2000 + "b = 1\n", "a name of more than 60 parts"),
        ("c.ini", "".join(f"k{i} = {i}\n" for i in range(25_000)), "more than 20,000 keys"),
        ("c.py", "x = " + "+".join(["1"] * 200_000), "nested too deeply"),
        ("c.py", "x = " + "(" * 3000 + "1" + ")" * 3000, "not valid Python"),
        ("c.py", "x = 1\n" * 400_000, "more than 2,000,000 characters of Python"),
        ("c.sh", "python t.py " + "--lr 1 " * 20_000, "more than 10000 words"),
        ("c.json", "[" + "1," * 4_100_000 + "1]", "more than a config has"),
        ("c.yaml", "lr: 1\0", "is binary"),
    ],
)
def test_a_bomb_is_refused_at_once(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    for read in (read_config, flat_config):
        began = time.process_time()
        with pytest.raises(ReadError) as refused:
            read(path)
        said = str(refused.value)
        assert says in said
        assert said.startswith(f"{path}: ")
        assert "\n" not in said
        assert time.process_time() - began < 8


def test_compare_refuses_a_bomb_of_aliases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(aliases(12, 9))
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(f'{{"step": {i}, "loss": {3 - i / 100}}}\n' for i in range(1, 40))
        )
    paths = [str(tmp_path / f"{n}.{end}") for end in ("jsonl", "yaml") for n in ("a", "b")]
    code = main(["compare", *paths[:2], "--configs", *paths[2:]])
    assert code == 2
    assert "once aliases are expanded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"lr": DIGITS, "max_steps": 10, "weight_decay": 0.1}'),
        ("c.yaml", "lr: DIGITS\nmax_steps: 10\nweight_decay: 0.1\n"),
        ("c.yaml", "lr: 0xDIGITS\nmax_steps: 10\nweight_decay: 0.1\n"),
        ("c.py", "lr = 0xDIGITS\nmax_steps = 10\nweight_decay = 0.1\n"),
        ("c.ini", "lr = DIGITS\nmax_steps = 10\nweight_decay = 0.1\n"),
        ("c.sh", "python train.py --lr DIGITS --max-steps 10 --weight-decay 0.1\n"),
    ],
)
def test_a_number_of_16_000_digits_does_not_hide_the_others(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text.replace("DIGITS", "9" * 16_000))
    (found,) = read_config(path)
    assert found.get("train_steps") == 10
    assert found.get("weight_decay") == 0.1
    assert takes_seconds(lambda: flat_config(path)) < 1
    assert main(["preflight", str(path)]) in (0, 1)


def test_a_whole_number_beyond_every_float_is_infinity() -> None:
    assert bounded({"a": [10**400, -(10**400), 10**300]}) == {
        "a": [math.inf, -math.inf, 10**300],
    }


def test_nothing_of_a_python_config_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    path = tmp_path / "c.py"
    path.write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
        f"lr = __import__('os').system('touch {mark}') or 3e-4\nmax_steps = 10\nseq = 9**9**9\n"
    )
    read_config(path)
    flat_config(path)
    assert not mark.exists()
    path = tmp_path / "c.yaml"
    path.write_text(f"lr: 1.0e-4\nx: !!python/object/apply:os.system ['touch {mark}']\n")
    read_config(path)
    assert not mark.exists()


@pytest.mark.slow
def test_python_names_that_build_on_each_other_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "c.py"
    rows = [f"a{i} = a{i - 1} + 1" for i in range(1, 15_000)]
    path.write_text("lr = 3e-4\na0 = 0\n" + "\n".join(rows))
    assert takes_seconds(lambda: flat_config(path)) < 4
