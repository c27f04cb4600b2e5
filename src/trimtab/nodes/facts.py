"""What one host says about itself: saved outputs of nvidia-smi, dmesg and others, as flat facts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from trimtab.crash import classify
from trimtab.errors import ReadError
from trimtab.text import plain

__all__ = [
    "HostFacts",
    "dmesg_facts",
    "iperf_facts",
    "nccl_facts",
    "nvidia_smi_facts",
    "nvlink_facts",
    "read_host",
    "read_pool",
]

Value = float | str
HostFacts = Mapping[str, Value]
"""Dotted name -> number or text, as `gpu.3.remapped_rows.pending`."""

_MOST_BYTES = 16 << 20
_MOST_HOSTS = 20_000
_MOST_FACTS = 20_000
_DOCUMENTED: Final = frozenset([*range(1, 96), *range(109, 111), *range(119, 173)])
"""Numbers that NVIDIA's list of Xid errors names, as of driver 580."""
_XID = re.compile(r"NVRM: (?:GPU\S* )?S?Xid \((?:PCI:)?([^)]{1,60})\): ?(\d{1,6})")
_DOWN = re.compile(
    r"(\b(?:ib|en|eth|bond|mlx)[\w.:-]*)\S*:? (?:.{0,40}?)"
    r"(?:link (?:is )?down|link status .{0,20}down"
    r"|port_inactive|NIC Link is Down)",
    re.IGNORECASE,
)
_SECONDS = re.compile(r"^\[\s*(\d+\.\d+)\]")
_OOM = re.compile(r"Out of memory: Killed process|oom-kill:|Memory cgroup out of memory")
_IO = re.compile(r"I/O error, dev |blk_update_request: .{0,20}error|nvme\d.{0,40}(?:timeout|reset)")
_FLAP_S = 300.0


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.strip().lower()).strip("_")


def _value(text: str) -> Value:
    """Return a number without its unit, or the text as it stands."""
    found = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)(?: ?(?:%|C|W|MiB|MHz|x|GB/s|bank\(s\)))?", text)
    return float(found[1]) if found else plain(text, limit=200)


def nvidia_smi_facts(text: str) -> dict[str, Value]:
    """Return facts from `nvidia-smi -q`, as text or as XML (`-x`).

    Values that the driver does not know (N/A) are left out: absent is not zero.
    """
    if text.lstrip().startswith("<"):
        return _from_xml(text)
    facts: dict[str, Value] = {}
    path: list[tuple[int, str]] = []
    gpu = -1
    for line in text.splitlines():
        if not line.strip() or line.startswith("==="):
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 and re.match(r"GPU [0-9A-Fa-f]{4,8}:", line):
            gpu += 1
            path = [(0, f"gpu.{gpu}")]
            facts[f"gpu.{gpu}.bus"] = line.split()[1]
            continue
        name, colon, value = line.partition(" : ")
        path = [p for p in path if p[0] < indent]
        key = ".".join([*(p[1] for p in path), _slug(name)])
        if not colon:
            path.append((indent, _slug(name)))
        elif value.strip() not in ("N/A", "None", ""):
            # A line with a value may have lines below it, as HW Slowdown has its reasons.
            path.append((indent, _slug(name)))
            facts[_renamed(key)] = _value(value.strip())
        if len(facts) > _MOST_FACTS:
            break
    return _counted(facts, gpu + 1)


def _from_xml(text: str) -> dict[str, Value]:
    if "<!ENTITY" in text:
        raise ReadError("the XML of nvidia-smi declares entities, which it never does")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ReadError(f"the XML of nvidia-smi is broken ({error})") from error
    facts: dict[str, Value] = {}
    gpu = -1
    for child in root:
        name = child.tag
        if name == "gpu":
            gpu += 1
            name = f"gpu.{gpu}"
            facts[f"{name}.bus"] = plain(child.get("id", ""), limit=40)
        for key, value in _leaves(child, name, 0):
            if value not in ("N/A", "None", "") and len(facts) < _MOST_FACTS:
                facts[_renamed(key)] = _value(value)
    return _counted(facts, gpu + 1)


def _leaves(node: ElementTree.Element, name: str, depth: int) -> Iterator[tuple[str, str]]:
    if len(node) == 0 or depth > 20:
        yield name, (node.text or "").strip()
        return
    for child in node:
        yield from _leaves(child, f"{name}.{_slug(child.tag)}", depth + 1)


_RENAMED: Final = (
    ("clocks_throttle_reasons", "clocks_event_reasons"),
    ("clocks_event_reasons.clocks_event_reason_", "clocks_event_reasons."),
    ("remapped_rows.remapped_row_", "remapped_rows."),
    ("remapped_rows.failure", "remapped_rows.remapping_failure_occurred"),
    (
        "remapped_rows.remapping_failure_occurred_occurred",
        "remapped_rows.remapping_failure_occurred",
    ),
    ("ecc_mode.current_ecc", "ecc_mode.current"),
    (
        "clocks_event_reasons.hw_thermal_slowdown",
        "clocks_event_reasons.hw_slowdown.hw_thermal_slowdown",
    ),
    ("retired_pages.pending_blacklist", "retired_pages.pending_page_blacklist"),
    ("retired_pages.pending_retirement", "retired_pages.pending_page_blacklist"),
)
"""Names of other drivers and of the XML -> those of the text of newer drivers."""


def _renamed(key: str) -> str:
    for old, new in _RENAMED:
        if new not in key:
            key = key.replace(old, new)
    return key


def _counted(facts: dict[str, Value], num: int) -> dict[str, Value]:
    if "attached_gpus" in facts or num:
        # What answered counts, not what the driver counts as attached.
        facts["num_gpus"] = float(num)
    return facts


def nvlink_facts(text: str) -> dict[str, Value]:
    """Return facts from `nvidia-smi nvlink -s`: how many links are up and down."""
    down = len(re.findall(r"Link \d+: <inactive>", text))
    up = len(re.findall(r"Link \d+: [\d.]+ GB/s", text))
    return {"nvlink_inactive": float(down), "nvlink_active": float(up)} if up + down else {}


def dmesg_facts(text: str) -> dict[str, Value]:
    """Return facts from the kernel's log: Xid by who must act, link flaps, OOM kills, disk errors.

    An Xid that is not documented is kept, with its line.
    """
    facts: dict[str, Value] = dict.fromkeys(("oom_kills", "io_errors", "flaps_in_5_min"), 0.0)
    downs: dict[str, list[float]] = {}
    at = 0.0
    for line in text.splitlines():
        stamp = _SECONDS.match(line)
        at = float(stamp[1]) if stamp else at
        found = _XID.search(line)
        if found is not None:
            report = classify([line])
            known = int(found[2]) in _DOCUMENTED
            who = (report.who_must_act if report is not None else "node") if known else "unknown"
            facts[f"xid.{who}"] = float(facts.get(f"xid.{who}", 0.0)) + 1.0
            facts[f"xid_line.{who}"] = plain(line, limit=200)
        facts["oom_kills"] = float(facts["oom_kills"]) + bool(_OOM.search(line))
        facts["io_errors"] = float(facts["io_errors"]) + bool(_IO.search(line))
        down = _DOWN.search(line)
        if down is not None:
            times = [t for t in downs.get(down[1], []) if at - t <= _FLAP_S] + [at]
            downs[down[1]] = times[-100:]
            facts["flaps_in_5_min"] = max(float(facts["flaps_in_5_min"]), float(len(times)))
    return facts


def iperf_facts(text: str) -> dict[str, Value]:
    """Return facts from `iperf3 -J`: the bandwidth received, MB/s."""
    try:
        bits = json.loads(text)["end"]["sum_received"]["bits_per_second"]
        return {"bandwidth.network_mb_s": float(bits) / 8e6}
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError("not what iperf3 -J prints") from error


def nccl_facts(text: str) -> dict[str, Value]:
    """Return facts from nccl-tests: average bus bandwidth in MB/s, and wrong values."""
    facts: dict[str, Value] = {}
    found = re.search(r"# Avg bus bandwidth\s*: ([\d.]+)", text)
    if found:
        facts["bandwidth.nccl_bus_mb_s"] = 1e3 * float(found[1])
    wrong = re.search(r"# Out of bounds values : (\d+)", text)
    if wrong:
        facts["nccl_wrong"] = float(wrong[1])
    return facts


def _dcgm_facts(text: str) -> dict[str, Value]:
    return {
        "dcgm_failed": float(len(re.findall(r"\|\s*Fail\b|\"status\"\s*:\s*\"FAIL\"", text, re.I)))
    }


def _own_facts(text: str) -> dict[str, Value]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReadError(f"is not JSON ({error})") from error
    facts: dict[str, Value] = {}

    def take(name: str, value: object, depth: int) -> None:
        if len(facts) >= _MOST_FACTS or depth > 8:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                take(f"{name}.{key}" if name else str(key), inner, depth + 1)
        elif isinstance(value, bool):
            facts[name] = "Yes" if value else "No"
        elif isinstance(value, int | float) and abs(value) < _LARGEST:
            facts[name] = float(value)
        elif isinstance(value, int | float):
            facts[f"unreadable.{name}"] = "Yes"  # no count and no speed is infinite
        elif isinstance(value, str):
            facts[name] = plain(value, limit=200)

    take("", document, 0)
    return facts


_LARGEST: Final = 1e300

_FILES: Final[tuple[tuple[str, Callable[[str], dict[str, Value]]], ...]] = (
    ("nvidia-smi*", nvidia_smi_facts),
    ("nvlink*", nvlink_facts),
    ("dmesg*", dmesg_facts),
    ("kern.log", dmesg_facts),
    ("iperf*.json", iperf_facts),
    ("nccl*", nccl_facts),
    ("dcgm*", _dcgm_facts),
    ("facts.json", _own_facts),
)
"""Names of files in a host's folder, and what reads them; the last one wins."""


def read_host(folder: Path) -> dict[str, Value]:
    """Return the facts in a host's folder.

    A file that cannot be read, or is not what its name says, is a fact `unreadable.NAME`.
    """
    facts: dict[str, Value] = {}
    for pattern, read in _FILES:
        for path in sorted(folder.glob(pattern))[:8]:
            if not path.is_file() or path.is_symlink():
                continue
            try:
                with path.open("rb") as file:
                    text = file.read(_MOST_BYTES).decode("utf-8", "replace")
                facts |= read(text)
            except (OSError, ReadError):
                # told as a check of this host: the others are judged all the same
                facts[f"unreadable.{plain(path.name, limit=80)}"] = "Yes"
    return facts


def read_pool(place: Path) -> dict[str, dict[str, Value]]:
    """Return the facts of each host of a pool.

    Args:
        place: A folder with one folder per host, as `trimtab doctor --collect` writes it; or a
            file with a host name per line that lies beside those folders.

    Returns:
        By host, in order; a host of the list without a folder has no facts.

    Raises:
        ReadError: There is no host, or a file cannot be read.
    """
    if place.is_dir():
        names = sorted(p.name for p in place.iterdir() if p.is_dir() and not p.is_symlink())
        root = place
    else:
        root = place.parent
        try:
            lines = place.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ReadError(
                f"{place}: is neither a folder of hosts nor a list ({error})"
            ) from error
        # OpenMPI's and DeepSpeed's host files put slots=8 behind the name.
        words = [line.split("#")[0].split() for line in lines]
        names = list(dict.fromkeys(w[0] for w in words if w))
    if not 0 < len(names) <= _MOST_HOSTS:
        raise ReadError(
            f"{place}: names {len(names)} hosts, expected 1 to {_MOST_HOSTS}; run trimtab doctor"
            " --collect DIR on each host, with one shared DIR"
        )
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,252}", name):
            raise ReadError(f"{place}: {plain(name)!r} is not the name of a host")
    pool = {name: read_host(root / name) if (root / name).is_dir() else {} for name in names}
    if not any(pool.values()):
        raise ReadError(
            f"{place}: no facts of any host; run trimtab doctor --collect {root} on each host"
        )
    return pool
