"""The result as JSON, and the skip list that follows from it."""

from typing import Any

from trimtab.data_scan.engine import ScanResult
from trimtab.data_scan.findings import corpus_tokens, figures
from trimtab.plan.skiplist import SkipList, SkipSource, merge_ranges

__all__ = ["document", "skip_list_of"]


def document(result: ScanResult) -> dict[str, Any]:
    """Return the public form (docs/formats.md)."""
    tokens, estimated = corpus_tokens(result.sources)
    plan = result.epochs
    return {
        "schema": 1,
        "sources": [figures(a) for a in result.sources],
        "findings": [
            {
                "rule": f.rule,
                "severity": f.severity,
                "message": f.message,
                "values": dict(f.values),
                "why": f.why,
                "source": f.source,
                "instead": f.instead,
                "where": f.where or None,
                "count": f.count,
                "examples": [dict(e) for e in f.examples],
            }
            for f in result.findings
        ],
        "corpus": {"tokens": tokens, "estimated": estimated},
        "epochs": (
            None
            if plan is None
            else {
                "epochs": plan.epochs,
                "corpus_tokens": plan.corpus_tokens,
                "plan_tokens": plan.plan_tokens,
                "tokens_per_step": plan.tokens_per_step,
                "starts": list(plan.starts),
            }
        ),
        "notes": list(result.notes),
        "errors": list(result.errors),
    }


def skip_list_of(result: ScanResult) -> SkipList:
    """Return what warnings and errors say is to be left out, of every source that was scanned."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for found in result.findings:
        if found.severity != "info":
            ranges.setdefault(found.where, []).extend(found.ranges)
    return SkipList(
        tuple(
            SkipSource(
                path=a.path,
                unit=a.unit,
                context=a.context,
                size=a.num_units,
                ids=merge_ranges(ranges.get(a.path, ())),
            )
            for a in result.sources
        )
    )
