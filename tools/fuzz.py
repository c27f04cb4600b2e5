"""Coverage-guided fuzzing of the readers: `python tools/fuzz.py [--runs N] [--keep DIR]`.

libFuzzer, by way of atheris, keeps every input that reaches new code and mutates those on; half of
the mutations are its own, half know what logs look like (`benchmarks.logs.fuzzing`). It stops at
the first input that breaks what must hold, and writes it to the working directory. Needs the
`fuzz` extra. A million inputs take about an hour on one core.
"""

import argparse
import random
import sys
import tempfile
import warnings
from pathlib import Path


def main() -> int:
    """Fuzz until the number of runs is reached or something breaks."""
    parser = argparse.ArgumentParser(description="coverage-guided fuzzing of the readers")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=0, help="stop after; 0: never")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--keep", type=Path, help="folder of inputs to go on from and add to")
    arguments = parser.parse_args()
    try:
        import atheris
    except ImportError:
        print("fuzzing needs the 'fuzz' extra: pip install '.[fuzz]'", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["trimtab.readers", "trimtab.record"]):
        from benchmarks.logs.fuzzing import examine, mutated, seed_logs
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        seeds = seed_logs(folder)
        corpus = arguments.keep or folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (corpus / name.replace(" ", "-")).write_bytes(data)
        others, path = tuple(seeds.values()), folder / "log"

        def one(data: bytes) -> None:
            path.write_bytes(data)
            examine(path)

        def mutate(data: bytes, max_size: int, seed: int) -> bytes:
            if seed % 2:
                return bytes(atheris.Mutate(data, max_size))
            return mutated(data, random.Random(seed), others)[:max_size]

        flags = [f"-runs={arguments.runs}", "-max_len=8192", "-timeout=30", "-rss_limit_mb=2048"]
        flags += [
            f"-max_total_time={arguments.seconds}",
            f"-seed={arguments.seed}",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *flags, str(corpus)], one, custom_mutator=mutate)
        atheris.Fuzz()  # ends the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
