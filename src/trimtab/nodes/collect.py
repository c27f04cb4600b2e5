"""The facts of the host that this runs on, written where the pool's facts lie."""

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np

from trimtab.durable import make_folder
from trimtab.errors import ConfigError
from trimtab.masking import masked, masked_text
from trimtab.version import __version__

__all__ = ["burn", "collect", "disk_bandwidth"]

_PROGRAMS: Final = (
    ("nvidia-smi.txt", ("nvidia-smi", "-q")),
    ("nvlink.txt", ("nvidia-smi", "nvlink", "-s")),
    ("dmesg.txt", ("dmesg",)),
)
_PROGRAM_S = 60.0
_MOST_BYTES = 8 << 20
_PACKAGES: Final = (
    *("torch", "numpy", "triton", "transformers", "accelerate", "deepspeed", "megatron-core"),
    *("torchtitan", "lightning", "flash-attn", "apex", "transformer-engine", "nvidia-nccl-cu12"),
    *("nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-resiliency-ext"),
)
_ENVIRONMENT = re.compile(
    r"(?:NCCL|TORCH_NCCL|TORCH_DISTRIBUTED|TORCH_SHOW_CPP|GLOO|CUDA_(?:LAUNCH|DEVICE)|PYTORCH_)\w*"
    r"|OMP_NUM_THREADS"
)
_OWN_TO_A_HOST = re.compile(r"CUDA_VISIBLE_DEVICES|.*(?:RANK|PORT|ADDR)$")
_DISK_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20


def collect(
    folder: Path,
    *,
    scratch: Path | None = None,
    burn_s: float = 0.0,
    multiply: Callable[[], bytes] | None = None,
    step_time_s: float | None = None,
) -> Path:
    """Write the facts of this host into `folder/HOST/`, and return that folder.

    Works without a GPU: what is not there is left out, and the checks say nothing of it.

    Args:
        folder: Of the pool; one that all hosts share is easiest.
        scratch: Where to measure the disk: where checkpoints go. None: not measured.
        burn_s: Seconds to repeat one matrix product for, each compared with the first; 0: not.
        multiply: Gives the bytes of that product; None: on the CPU, by numpy.
        step_time_s: Time of a step of a job on this host alone, where known.

    Raises:
        ConfigError: The folder or the scratch folder cannot be written.
    """
    name = platform.node().split(".")[0] or "localhost"
    own = folder / name
    try:
        make_folder(own)
    except OSError as error:
        raise ConfigError(f"{own}: cannot be made ({error.strerror}); give another DIR") from error
    facts: dict[str, object] = {
        "host": name,
        "t": time.time(),
        "trimtab": __version__,
        "kernel": platform.release(),
        "num_cores": os.cpu_count() or 0,
        "versions": _versions(),
        "environment": _environment(os.environ),
        **_memory(),
    }
    if scratch is not None:
        facts["bandwidth"] = disk_bandwidth(scratch)
    if burn_s > 0:
        facts["burn_mismatches"], facts["burn_products"] = burn(burn_s, multiply)
    if step_time_s is not None:
        facts["step_time_s"] = step_time_s
    outputs = {file: out for file, argv in _PROGRAMS if (out := _run(argv)) is not None}
    try:
        for file, out in outputs.items():
            (own / file).write_text(masked_text(out), encoding="utf-8")
        text = json.dumps(masked(facts), indent=1)
        (own / "facts.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{own}: cannot be written ({error.strerror})") from error
    return own


def _run(argv: tuple[str, ...]) -> str | None:
    """Return what a program prints; None where it is missing or may not run."""
    if shutil.which(argv[0]) is None:
        return None
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_PROGRAM_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = done.stdout[-_MOST_BYTES:].decode("utf-8", "replace")
    return text if done.returncode == 0 and text.strip() else None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "glibc": platform.libc_ver()[1]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {name: version for name, version in found.items() if version}


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value[:200]
        for name, value in sorted(environment.items())
        if _ENVIRONMENT.fullmatch(name) and not _OWN_TO_A_HOST.fullmatch(name)
    }


def _memory() -> dict[str, float]:
    """Return total and available memory of the host, from /proc/meminfo."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return {}
    kib = {m[1]: float(m[2]) for m in re.finditer(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    total, free = kib.get("MemTotal", 0.0), kib.get("MemAvailable", 0.0)
    if total <= 0:
        return {}
    return {"memory_bytes": 1024 * total, "memory_available_share": round(free / total, 4)}


def disk_bandwidth(folder: Path, *, size_bytes: int = _DISK_BYTES) -> dict[str, float]:
    """Return how fast a file of a folder is written to disk and read back, MB/s.

    Written with fsync at the end; what the kernel keeps in memory is dropped before it is read.

    Raises:
        ConfigError: The folder cannot be written.

    Cost: 64 MiB of disk for some seconds, removed afterwards.
    """
    block = os.urandom(_BLOCK_BYTES)
    path = folder / f".trimtab-disk-{os.getpid()}"
    num = max(size_bytes // _BLOCK_BYTES, 1)
    try:
        began = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(num):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter() - began
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while file.read(_BLOCK_BYTES):
                pass
            read = time.perf_counter() - began
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be measured ({error.strerror}); give a folder with 64 MiB of space"
        ) from error
    finally:
        path.unlink(missing_ok=True)
    size_mb = num * _BLOCK_BYTES / 1e6
    return {
        "disk_write_mb_s": round(size_mb / max(written, 1e-9), 1),
        "disk_read_mb_s": round(size_mb / max(read, 1e-9), 1),
    }


def burn(seconds: float, multiply: Callable[[], bytes] | None = None) -> tuple[int, int]:
    """Repeat one product and count the results that differ from the first in any bit.

    This is a short look, no stress test: dcgmi diag -r 3 heats a GPU for minutes.

    Args:
        seconds: How long; at least two products are made.
        multiply: Gives the bytes of the result; None: 512 x 512 by numpy.

    Returns:
        Mismatches, and products compared.
    """
    if multiply is None:
        rng = np.random.default_rng(0)
        left = rng.standard_normal((512, 512), dtype=np.float32)

        def multiply() -> bytes:
            return (left @ left.T).tobytes()

    first = multiply()
    wrong = num = 0
    until = time.monotonic() + seconds
    while num == 0 or time.monotonic() < until:
        wrong += multiply() != first
        num += 1
    return wrong, num
