"""Times of each rank, as Megatron's timers print them, through `trimtab inspect`."""

from pathlib import Path

import pytest

from trimtab.readers import read_run


def log(path: Path, *, slow: int | None, option: str = "all") -> Path:
    """Write a log of four ranks and 20 readings, in which one rank works half as long again."""
    lines = []
    for step in range(1, 21):
        record = f" iteration {step:8d}/     100 | consumed samples: {step * 8:12d} |"
        record += f" elapsed time per iteration (ms): 400.0 | lm loss: {3 - step / 50:.6E} |"
        lines.append(f"{record} number of nan iterations:   0 |")
        own = [250.0 * (1.5 if rank == slow else 1.0) + (7 * step + rank) % 5 for rank in range(4)]
        if option == "all":
            lines += ["times across ranks (ms):", "  forward-backward:"]
            lines += [f"     rank {rank:2d}: 380.00" for rank in range(4)]
            lines.append("  forward-compute:")
            lines += [f"     rank {rank:2d}: {ms:.2f}" for rank, ms in enumerate(own)]
        else:
            lines.append("(min, max) time across ranks (ms):")
            named = "forward-compute ".ljust(48, ".")
            lines.append(f"    {named}: ({min(own):.2f}, {max(own):.2f})")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("slow", "option", "told"),
    [
        (2, "all", "rank 2 is slow: the own work of rank 2 takes 377 ms, that of the usual rank"),
        (None, "all", ""),
        (2, "minmax", "forward-compute takes 1.51 x as long on one rank as on another"),
        (None, "minmax", ""),
    ],
)
def test_rank_times_name_the_straggler(
    tmp_path: Path, slow: int | None, option: str, told: str
) -> None:
    record = read_run(log(tmp_path / "train.log", slow=slow, option=option))
    assert record.format == "megatron"
    found = [n for n in record.notes if "rank" in n]
    assert bool(found) == bool(told)
    assert not told or found[0].startswith(told), found
