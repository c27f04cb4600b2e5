"""Learning-rate schedules written as a list of segments, which hold warm-up, peak and end."""

from collections.abc import Iterator, Mapping

from trimtab.configs.document import PathKey, squash
from trimtab.configs.settings import Setting
from trimtab.configs.values import finite

__all__ = ["segment_facts"]

STARTS = {"initiallearningrate", "initiallr", "startlr", "lrstart"}
ENDS = {"endlearningrate", "endlr", "finallearningrate", "lrend"}
LENGTHS = {"totaliters", "steps", "numsteps", "decaysteps", "iters", "totalsteps"}


def segment_facts(tree: object) -> dict[str, Setting]:
    """Return lr, min_lr and warmup_steps of a list of segments with start, end and length.

    {} where there is none.

    The peak is the highest rate of any segment; warm-up is the length of a first segment that
    rises; the end is that of the last segment, where it lies below the peak.
    """
    for path, segments in lists(tree, ()):
        key = ".".join(path)
        rates = [rate for segment in segments for rate in segment[:2] if rate is not None]
        if not rates:
            continue
        found = {"lr": Setting(max(rates), "stated", key)}
        start, end, length = segments[0]
        if start is not None and end is not None and start < end and length:
            found["warmup_steps"] = Setting(int(length), "stated", key)
        last = segments[-1][1]
        if len(segments) > 1 and last is not None and last < max(rates):
            found["min_lr"] = Setting(last, "stated", key)
        return found
    return {}


def lists(
    node: object, path: PathKey
) -> Iterator[tuple[PathKey, list[tuple[float | None, float | None, float | None]]]]:
    """Give every list whose items have a start or an end of the learning rate."""
    if len(path) > 40:
        return
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from lists(value, (*path, str(key)))
    elif isinstance(node, list):
        segments = [
            segment
            for item in node
            if isinstance(item, Mapping) and (segment := read(item)) is not None
        ]
        if segments:
            yield path, segments
        else:
            for item in node:
                yield from lists(item, path)


def read(item: Mapping[str, object]) -> tuple[float | None, float | None, float | None] | None:
    """Return start, end and length of one segment, which may be nested under a scheduler's name."""
    # `{"LinearWarmup": {"start_lr": …}}`: some frameworks name the scheduler around its values
    if len(item) == 1 and isinstance(inner := next(iter(item.values())), Mapping):
        item = inner
    named = {squash(str(key)): finite(value) for key, value in item.items()}

    def pick(names: set[str]) -> float | None:
        return next(
            (value for name, value in named.items() if name in names and value is not None), None
        )

    start, end = pick(STARTS), pick(ENDS)
    return None if start is None and end is None else (start, end, pick(LENGTHS))
