"""The part of `trimtab doctor` that tries the guard out on this machine: `--qualify`."""

import argparse
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from trimtab.cli.lab_options import load_lab
from trimtab.cli.output import print_json, tell
from trimtab.durable import write_whole
from trimtab.errors import ConfigError

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("the guard on this machine")
    group.add_argument(
        "--qualify",
        action="store_true",
        help="try out what the guard does to a run here, in up to 10 minutes; exit 1 unless act is"
        " certified",
    )
    group.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write the certificate there; best certificate.json in the run directory",
    )
    group.add_argument("--device", metavar="NAME", help="default: cuda where there is one, or cpu")
    group.add_argument("--only", metavar="NAME,…", default="", help="only these checks")


def run(arguments: argparse.Namespace) -> int:
    """Try everything out, and write the certificate; exit 1 unless it lets a run act."""
    # Without it cuBLAS may add up in another order each time; it counts when CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    module: Any = load_lab("trimtab.lab.qualify", 1)
    import torch

    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"--device {device!r} cannot be used: {why}") from error
    only = tuple(name for name in arguments.only.split(",") if name)
    for name in only:
        if name not in module.CHECKS:
            raise ConfigError(f"--only {name!r}: choose of {', '.join(module.CHECKS)}")

    def say(check: Any) -> None:
        if not arguments.json:
            tell(f"{module.CHECKS[check.name][0]:<40}{check.state:<14}{check.text}")

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        certificate = module.qualify(device, Path(folder), only=only, say=say)
    document = certificate.to_json()
    if arguments.out is not None:
        try:
            write_whole(arguments.out, (json.dumps(document, indent=1) + "\n").encode())
        except OSError as error:
            raise ConfigError(f"{arguments.out}: cannot be written ({error.strerror})") from error
    if arguments.json:
        print_json(document)
    elif certificate.passed:
        tell(f"act is certified on {certificate.machine.get('accelerator', 'this CPU')}")
    else:
        tell(f"act is not certified: {certificate.misfit({}, 1)}")
    return int(not certificate.passed)
