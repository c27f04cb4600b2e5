"""Preflight: read configs, apply every rule, and return one result.

What `trimtab preflight` prints and `trimtab.preflight` returns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from trimtab.config_rules.advice import reach
from trimtab.config_rules.budget import Machine, plan_config
from trimtab.config_rules.lint import ConfigFinding, Phase, in_phase, lint, phase_of, satisfied
from trimtab.config_rules.presets import PresetDifference, difference, find_preset
from trimtab.config_rules.rules import ConfigRule, Severity
from trimtab.config_rules.scale import on_devices
from trimtab.configs import Settings, joined, read_config
from trimtab.configs.facts import Facts
from trimtab.errors import ConfigError, ReadError

__all__ = ["ConfigReport", "Deviation", "PreflightResult", "preflight_config"]

SCHEMA = 1


_FAR = 5.0
"""Times the size at which settings were verified from which on using them is told. Ours."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How one config differs from a published run or from another config."""

    to: str
    source: str
    """Where a preset's values were published; empty for another config."""
    settings: tuple[PresetDifference, ...]
    scale: float | None = None
    """Size of the model over that of the other; None where one is not known."""

    @property
    def warning(self) -> str:
        """What to know of settings that were verified at a much smaller model; empty: nothing."""
        if self.scale is None or self.scale <= _FAR:
            return ""
        return (
            f"this model is {self.scale:.1f} x as large as the one these settings were verified at:"
            " what the two share is extrapolated; try it at a size between"
        )


@dataclass(frozen=True, kw_only=True)
class ConfigReport:
    """One config: what was read, what was found, what it costs."""

    settings: Settings
    findings: tuple[ConfigFinding, ...]
    """Findings of the requested phase, most severe first."""
    other_phase: int
    """Number of findings of the other phase."""
    satisfied: tuple[ConfigRule, ...]
    verified_at: Mapping[str, float]
    """Size of the model over the largest at which each practice was verified."""
    plan: Mapping[str, object]
    deviation: Deviation | None = None

    @property
    def is_sound(self) -> bool:
        """Whether there is no error and the run ends before its deadline."""
        eta = self.plan.get("eta")
        late = isinstance(eta, Mapping) and bool(eta.get("late"))
        return not late and all(f.severity != "error" for f in self.findings)

    def to_dict(self) -> dict[str, object]:
        """Return the row of this config in the JSON document (docs/formats.md)."""
        row: dict[str, object] = {
            "path": self.settings.path,
            "framework": self.settings.framework,
            "settings": {name: self.settings.get(name) for name in self.settings},
            "findings": [
                {**asdict(f), "values": dict(f.values), "phase": phase_of(f.when)}
                for f in self.findings
            ],
            "notes": list(self.settings.note),
            "verified_at": dict(self.verified_at),
        }
        if self.plan:
            row["plan"] = self.plan
        if self.deviation is not None:
            row["difference"] = {
                "to": self.deviation.to,
                "source": self.deviation.source,
                "settings": [asdict(d) for d in self.deviation.settings],
                "scale": self.deviation.scale,
                "warning": self.deviation.warning,
            }
        return row


@dataclass(frozen=True, kw_only=True)
class PreflightResult:
    """What preflight found in one or several configs.

    Example:
        >>> PreflightResult(configs=(), errors=({"path": "x", "error": "x: missing"},)).verdict
        'unreadable'
    """

    configs: tuple[ConfigReport, ...]
    errors: tuple[Mapping[str, str], ...] = ()
    """`path` and `error` of each config that could not be read."""

    @property
    def findings(self) -> tuple[ConfigFinding, ...]:
        """Findings of all configs, in the order of the configs."""
        return tuple(f for report in self.configs for f in report.findings)

    @property
    def verdict(self) -> Severity | Literal["unreadable", "fine"]:
        """The worst severity found; `unreadable` where a config could not be read, else `fine`."""
        if self.errors:
            return "unreadable"
        found = {f.severity for f in self.findings}
        severities: tuple[Severity, ...] = ("error", "warning", "info")
        return next((severity for severity in severities if severity in found), "fine")

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 2 unreadable, 1 an error or a late run, else 0."""
        return 2 if self.errors else int(not all(report.is_sound for report in self.configs))

    def to_dict(self) -> dict[str, object]:
        """Return the document of `trimtab preflight --json`."""
        return {
            "schema": SCHEMA,
            "configs": [report.to_dict() for report in self.configs],
            "errors": [dict(error) for error in self.errors],
        }


def preflight_config(
    *paths: str | Path,
    machine: Machine | None = None,
    phase: Phase | None = None,
    like: str | None = None,
    against: str | Path | None = None,
) -> PreflightResult:
    """Read configs and check each against what went wrong in public runs.

    Args:
        paths: Config files of any framework, launch scripts, or directories of them.
        machine: What no config states: parameters, tokens, devices, deadline.
        phase: Only findings of one phase: `start`, or `mid` for a run in trouble.
        like: Name of a published run to compare with, such as `llama3`.
        against: Another config to compare with.

    Returns:
        One report for each config; a file that cannot be read is listed in `errors`.

    Raises:
        ConfigError: No path, a number of the machine is not positive, or there is no such preset.
        ReadError: `against` cannot be read.
    """
    if not paths:
        raise ConfigError("no config is given; give the path of a config")
    known = machine or Machine()
    read: list[Settings] = []
    errors: list[Mapping[str, str]] = []
    for path in paths:
        try:
            read += read_config(path)
        except ReadError as error:
            errors.append({"path": str(path), "error": str(error)})
    if len(paths) > 1:
        # Files named together may be parts of one run (a trainer's config and DeepSpeed's JSON).
        read = joined(read, given_together=all(Path(path).is_file() for path in paths))
    other = read_config(against) if against is not None and like is None else []
    reports = tuple(_report(settings, known, phase, like, other) for settings in read)
    return PreflightResult(configs=reports, errors=tuple(errors))


def _report(
    settings: Settings,
    machine: Machine,
    phase: Phase | None,
    like: str | None,
    against: Sequence[Settings],
) -> ConfigReport:
    # Before the rules: several of them ask for the batch of the whole job.
    settings = on_devices(settings, machine.devices)
    known = {
        "params": machine.params,
        "corpus_tokens": machine.corpus_tokens,
        "train_tokens": machine.train_tokens,
    }
    # All phases first: what the requested one leaves out is counted in the report.
    everything = lint(settings, **known)
    findings = in_phase(everything, phase) if phase else everything
    return ConfigReport(
        settings=settings,
        findings=findings,
        other_phase=len(everything) - len(findings),
        satisfied=satisfied(settings, everything, **known),
        verified_at=reach(settings, machine.params),
        plan=plan_config(settings, machine),
        deviation=_deviation(settings, like, against, machine.params),
    )


def _deviation(
    settings: Settings, like: str | None, against: Sequence[Settings], params: float | None
) -> Deviation | None:
    """Return the difference to a preset or, without one, to another config."""
    if like is not None:
        preset = find_preset(like, settings)
        found = difference(settings, preset.as_settings())
        scale = _scale(settings, preset.as_settings(), params)
        return Deviation(to=preset.name, source=preset.source, settings=found, scale=scale)
    if not against:
        return None
    found = difference(settings, against[0], absent=True)
    scale = _scale(settings, against[0], params)
    return Deviation(to=against[0].path, source="", settings=found, scale=scale)


def _scale(ours: Settings, theirs: Settings, params: float | None) -> float | None:
    size, other = Facts(ours, params=params).params, Facts(theirs).params
    return size / other if size and other else None
