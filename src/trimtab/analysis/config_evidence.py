"""What a check of a config says about the causes of an incident, as evidence."""

from trimtab.config_rules.lint import lint
from trimtab.configs import Settings
from trimtab.diagnosis.config_signs import CONFIG_EVIDENCE, ConfigSign

__all__ = ["config_signs"]


def config_signs(settings: Settings) -> tuple[ConfigSign, ...]:
    """Return the findings of preflight that bear on a cause, the most severe first."""
    return tuple(
        ConfigSign(
            rule=f.rule,
            severity=f.severity,
            message=f.message,
            ratio=_number(f.values.get("ratio")),
        )
        for f in lint(settings)
        if f.rule in CONFIG_EVIDENCE and f.severity != "info"
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
