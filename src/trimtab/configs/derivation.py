"""What keys state in one config, and the settings that are computed from it step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.configs.settings import Origin, Setting
from trimtab.configs.values import finite

__all__ = ["Derivation"]


@dataclass
class Derivation:
    """What was found in one config, and the settings made of it so far."""

    stated: dict[str, Setting]
    values: dict[str, Setting] = field(default_factory=dict)
    note: list[str] = field(default_factory=list)
    defaults: Mapping[str, object] = field(default_factory=dict)
    batch_unit: str = ""
    """What `batch_size` counts in this framework: global, micro, or "" where it is not known."""
    ffn_rule: str = ""

    def fact(self, name: str) -> object:
        """Return a stated fact, or None."""
        found = self.stated.get(name)
        return None if found is None else found.value

    def amount(self, name: str) -> float | None:
        """Return a stated fact as a finite number, or None.

        Nothing is computed from NaN and Inf.
        """
        return finite(self.fact(name))

    def get(self, name: str) -> float | None:
        """Return a setting made so far as a finite number, or None."""
        found = self.values.get(name)
        return None if found is None else finite(found.value)

    def keep(self, name: str, fact: str | None = None) -> None:
        """Take a fact over as a setting of the same meaning."""
        found = self.stated.get(fact or name)
        if found is not None and name not in self.values:
            self.values[name] = found

    def derive(
        self, name: str, value: object, /, *sources: str, origin: Origin = "derived"
    ) -> None:
        """Set what was computed from the named facts, unless the file states it."""
        if value is None or name in self.values:
            return
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            value = int(value)
        source = next((self.stated[s] for s in sources if s in self.stated), None)
        key, line = (source.key, source.line) if source else ("", None)
        text = "" if source is None else str(source.value)[:40]
        self.values[name] = Setting(value, origin, key, line, text)

    def default(self, name: str) -> object:
        """Return the framework's default of a fact or setting, or None."""
        return self.defaults.get(name)
