"""The changes of a run with their labels; a change without a label is marked."""

from collections.abc import Sequence

from trimtab.chronicle.journal import Event
from trimtab.text import number, plain, words

__all__ = ["ChangeRow", "changes_of"]

NO_LABEL = "no label yet: too few steps followed"


class ChangeRow(tuple[str, str, str, str]):
    """Remedy, attempt and step, label, what the metrics say."""

    __slots__ = ()


def changes_of(events: Sequence[Event]) -> list[ChangeRow]:
    """Return every change that was made, in order, with the label it was given.

    A run of skipped updates is no change of settings and is left out.
    """
    labels = [e for e in events if e.event == "outcome" and e.data.get("label")]
    rows = []
    for e in events:
        remedy = str(e.data.get("remedy", ""))
        if e.event != "action" or remedy == "skip-update":
            continue
        said = next((o for o in labels if _is_of(o, e, remedy)), None)
        place = f"{plain(e.attempt)} @ {number(e.step)}"
        label = NO_LABEL if said is None else plain(said.data["label"])
        rows.append(
            ChangeRow((words(remedy), place, label, "" if said is None else _metrics(said)))
        )
    return rows


def _is_of(outcome: Event, action: Event, remedy: str) -> bool:
    return outcome.data.get("remedy") == remedy and outcome.data.get("of_step") == action.step


def _metrics(outcome: Event) -> str:
    metrics = outcome.data.get("metrics")
    if not isinstance(metrics, dict):
        return ""
    return ", ".join(f"{plain(name)} {plain(said)}" for name, said in metrics.items())
