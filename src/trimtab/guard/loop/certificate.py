"""What was tried out on a machine, and whether it lets `act` change a run on an accelerator there.

`trimtab doctor --qualify` writes a certificate. A guard that is to act on an accelerator looks for
one in its run directory, then where the policy says. Where none fits it advises, unless the policy
overrides that.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from trimtab.errors import ReadError
from trimtab.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.plan.policy import Policy

__all__ = [
    "FILE_NAME",
    "NEEDED",
    "Certificate",
    "CertificateCheck",
    "machine_of",
    "why_uncertified",
]

FILE_NAME = "certificate.json"
_SCHEMA = 1
_MOST_BYTES = 1 << 20
NEEDED = ("observe", "snapshot", "skip", "rollback", "kill")
"""Checks without which `act` is not certified; the others tell what else works."""
_FITS = ("accelerator", "torch", "cuda", "driver", "trimtab")
"""What must be the same as when it was written, where both are known."""


@dataclass(frozen=True, kw_only=True)
class CertificateCheck:
    """One thing that was tried out."""

    name: str
    state: Literal["passed", "failed", "not possible"]
    text: str
    """One sentence: what was seen, or why it cannot be tried here."""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was tried out on one machine."""

    machine: dict[str, str]
    """As `machine_of` gives it."""
    model: str
    """Class of the model that was trained."""
    parallelism: str
    ranks: int
    date: str
    """UTC, ISO 8601."""
    checks: tuple[CertificateCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether all that `act` needs was seen to work."""
        return not self._missing()

    def _missing(self) -> list[str]:
        good = {c.name for c in self.checks if c.state == "passed"}
        return [name for name in NEEDED if name not in good]

    def misfit(self, machine: Mapping[str, str], ranks: int) -> str:
        """Return why it says nothing of a run there; empty where it lets the run act.

        Example:
            >>> one = Certificate(machine={"torch": "2.4"}, model="", parallelism="", ranks=1,
            ...                   date="", checks=())
            >>> one.misfit({"torch": "2.5"}, 1)
            'its torch is 2.4, here it is 2.5'
        """
        for name in _FITS:
            then, now = self.machine.get(name), machine.get(name)
            if then and now and then != now:
                return f"its {name} is {then}, here it is {now}"
        if ranks != self.ranks:
            return f"it is of {self.ranks} rank{'s' * (self.ranks > 1)}, this run has {ranks}"
        missing = self._missing()
        return f"not passed there: {', '.join(missing)}" if missing else ""

    def to_json(self) -> dict[str, Any]:
        """Return the file's document."""
        return {"schema": _SCHEMA, "certified": self.passed, **asdict(self)}

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Return what a file holds.

        Raises:
            ReadError: It cannot be read, or is none.
        """
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ReadError(f"{path}: is too large for a certificate")
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["schema"] != _SCHEMA:
                raise ReadError(f"{path}: is of schema {found['schema']!r:.20}, not {_SCHEMA}")
            return cls(
                machine={str(k): str(v) for k, v in found["machine"].items()},
                model=str(found["model"]),
                parallelism=str(found["parallelism"]),
                ranks=int(found["ranks"]),
                date=str(found["date"]),
                checks=tuple(
                    CertificateCheck(name=str(c["name"]), state=c["state"], text=str(c["text"]))
                    for c in found["checks"]
                ),
            )
        except OSError as error:
            raise ReadError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReadError(f"{path}: is no certificate ({type(error).__name__})") from error


def machine_of(device: torch.device | None) -> dict[str, str]:
    """Return what decides how an accelerator computes; empty for a CPU."""
    if device is None or device.type in ("cpu", "meta"):
        return {}
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", lambda _device: device.type)(device)
    found = {"accelerator": str(name), "torch": str(torch.__version__), "trimtab": __version__}
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
        found["driver"] = _driver()
    return found


def _driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.search(r"\b\d{3}\.[\d.]+\b", text)
    return found[0] if found else ""


def why_uncertified(machine: Mapping[str, str], policy: Policy, root: Path, ranks: int) -> str:
    """Return why a run may not act on its accelerator; empty where it may.

    Args:
        machine: As `machine_of` gives it; empty for a CPU, which needs no certificate.
        policy: Says where a certificate may lie beside the run directory.
        root: Run directory.
        ranks: How many train together.
    """
    if not machine:
        return ""
    given = Path(policy.certificate).expanduser() if policy.certificate else None
    places = [root / FILE_NAME]
    if given is not None:
        places.append(given / FILE_NAME if given.is_dir() else given)
    why = ""
    for path in places:
        if not path.is_file() and path != given:
            continue
        try:
            misfit = Certificate.read(path).misfit(machine, ranks)
        except ReadError as error:
            why = str(error)
            continue
        if not misfit:
            return ""
        why = f"{path}: {misfit}"
    return why or f"no certificate of {machine['accelerator']} in the run directory" + (
        f" or {given}" if given is not None else ""
    )
