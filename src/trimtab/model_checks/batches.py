"""The first batches as the model sees them: what counts for the loss, and what the tokens say.

Works on anything with `tolist()` or on nested lists; torch is not imported. A tokenizer is any
object with `decode` and, where it has them, `bos_token_id`, `eos_token_id`, `pad_token_id`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

__all__ = ["BatchFinding", "BatchReport", "Decoder", "look_at_batches"]

IGNORED: Final = -100
"""Label that takes a position out of the loss (torch.nn.CrossEntropyLoss, ignore_index)."""

_MAX_ROWS: Final = 4096
_FEW_LABELS: Final = 0.01
_SAMPLE_TOKENS: Final = 48
_NEARLY_ALL: Final = 0.9
"""Share of rows from which on a pattern is that of the collator. Ours."""
_SHORTEST_ANSWER: Final = 3
"""Tokens from which on what is masked at the end is more than an end of text. Ours."""

# The marks after which a speaker's turn begins, of common chat templates.
_TURNS: Final[tuple[tuple[str, str], ...]] = (
    ("<|im_start|>system", "system"),
    ("<|im_start|>user", "user"),
    ("<|im_start|>assistant", "assistant"),
    ("<|start_header_id|>system", "system"),
    ("<|start_header_id|>user", "user"),
    ("<|start_header_id|>assistant", "assistant"),
    ("<start_of_turn>user", "user"),
    ("<start_of_turn>model", "assistant"),
    ("<|system|>", "system"),
    ("<|user|>", "user"),
    ("<|assistant|>", "assistant"),
    ("[/INST]", "assistant"),
    ("[INST]", "user"),
    ("### Instruction:", "user"),
    ("### Response:", "assistant"),
    ("\n\nHuman:", "user"),
    ("\n\nAssistant:", "assistant"),
)


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: Any, /) -> str:
        """Return the text of some ids."""
        ...


@dataclass(frozen=True, kw_only=True)
class BatchFinding:
    """One thing that is wrong with the batches."""

    rule: str
    severity: Literal["error", "warning", "info"]
    message: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """What the first batches hold."""

    rows: int
    tokens: int
    """Positions that are no padding."""
    labels_share: float
    """Share of them whose label counts for the loss; 0 to 1, NaN without tokens."""
    by_role: Mapping[str, float]
    """Share of labels that count, by speaker; empty where no chat template shows."""
    sample: str
    """Beginning of the first row, labels that count in 《》; ids without a tokenizer."""
    not_checked: tuple[str, ...]
    """What was not judged, each with the reason."""
    findings: tuple[BatchFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is an error."""
        return all(f.severity != "error" for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Row:
    ids: list[int]
    labels: list[int] | None
    """None: the batch has none, and every position counts."""
    seen: list[bool]
    """Whether a position is no padding."""

    @property
    def counts(self) -> list[bool]:
        """Whether the label of each position counts; padding never does."""
        if self.labels is None:
            return self.seen
        return [s and label != IGNORED for s, label in zip(self.seen, self.labels, strict=True)]

    @property
    def padding_counts(self) -> int:
        """Number of labels that count where nothing attends."""
        pairs = zip(self.seen, self.labels or (), strict=False)
        return sum(not seen and label != IGNORED for seen, label in pairs)


def look_at_batches(
    batches: Iterable[Mapping[str, Any]],
    *,
    tokenizer: Decoder | None = None,
    max_length: int | None = None,
    num_batches: int = 4,
) -> BatchReport:
    """Say what the first batches train on, and what is wrong with them.

    Args:
        batches: Mappings with `input_ids` int [rows, length], and where there are any `labels` and
            `attention_mask` of the same shape. Labels stand at the position of their own token;
            the model shifts them, as those of transformers do.
        tokenizer: Gives the text, and the ids of the special tokens.
        max_length: Length at which samples are cut; None takes the longest row.
        num_batches: Batches looked at; no more are drawn from `batches`.

    Raises:
        ValueError: A batch has no `input_ids`, or its shapes differ.

    Cost: linear in the tokens, on the host; at most 4,096 rows.
    """
    rows: list[_Row] = []
    source = iter(batches)
    for number in range(num_batches):
        batch = next(source, None)
        if batch is None or len(rows) >= _MAX_ROWS:
            break
        rows += _rows(batch, number)[: _MAX_ROWS - len(rows)]
    tokens = sum(sum(row.seen) for row in rows)
    counted = sum(sum(row.counts) for row in rows)
    roles = _by_role(rows, tokenizer)
    findings = [
        *_labels(tokens, counted, roles),
        *_padding(rows),
        *(() if "assistant" in roles else _beginnings(rows)),
        *_agreement(rows),
        *_special(rows, tokenizer),
        *_cut(rows, tokenizer, max_length),
        *_repeated(rows),
    ]
    order = ("error", "warning", "info")
    return BatchReport(
        rows=len(rows),
        tokens=tokens,
        labels_share=counted / tokens if tokens else float("nan"),
        by_role=roles,
        sample=_sample(rows, tokenizer),
        not_checked=_not_checked(tokenizer, roles),
        findings=tuple(sorted(findings, key=lambda f: order.index(f.severity))),
    )


def _rows(batch: Mapping[str, Any], number: int) -> list[_Row]:
    if "input_ids" not in batch:
        raise ValueError(f"batch {number} has no 'input_ids'; it has {', '.join(sorted(batch))}")
    ids = _matrix(batch, "input_ids", number)
    labels = _matrix(batch, "labels", number) if batch.get("labels") is not None else None
    mask = None
    if batch.get("attention_mask") is not None:
        mask = _matrix(batch, "attention_mask", number)
    for name, other in (("labels", labels), ("attention_mask", mask)):
        if other is not None and [len(r) for r in other] != [len(r) for r in ids]:
            raise ValueError(
                f"batch {number}: 'input_ids' and {name!r} differ in shape; of an encoder-decoder give"
                " the decoder's ids, which are its labels"
            )
    return [
        _Row(
            ids=row,
            labels=labels[i] if labels is not None else None,
            seen=[bool(m) for m in mask[i]] if mask is not None else [True] * len(row),
        )
        for i, row in enumerate(ids)
    ]


def _matrix(batch: Mapping[str, Any], name: str, number: int) -> list[list[int]]:
    plain = _listed(batch[name])
    if not _is_list(plain):
        raise ValueError(
            f"batch {number}: {name!r} is {_shown(plain)}, not a list of whole numbers"
        )
    nested = [_listed(row) for row in plain]
    rows = nested if nested and _is_list(nested[0]) else [nested]
    for row in rows:
        wrong = [row] if not _is_list(row) else [t for t in row if not _is_whole(t)]
        if wrong:
            raise ValueError(
                f"batch {number}: {name!r} holds {_shown(wrong[0])}, where whole numbers are needed"
            )
    return [[int(token) for token in row] for row in rows]


def _listed(value: Any) -> Any:
    """Return a tensor or an array as lists, and anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_whole(value: object) -> bool:
    return hasattr(value, "__index__") or (isinstance(value, float) and value.is_integer())


def _shown(value: object) -> str:
    return f"{value!r:.40}"


def _by_role(rows: Sequence[_Row], tokenizer: Decoder | None) -> dict[str, float]:
    """Return the share of labels that count in each speaker's turns."""
    if tokenizer is None:
        return {}
    total: dict[str, int] = {}
    counted: dict[str, int] = {}
    for row in rows[:64]:
        role, text = "", ""
        for token, seen, counts in zip(row.ids, row.seen, row.counts, strict=True):
            if not seen:
                continue
            text = (text + tokenizer.decode([token]))[-64:]
            ends = [(text.rfind(mark), name) for mark, name in _TURNS if mark in text]
            if ends:
                # The mark itself belongs to nobody; what follows is the turn.
                role, text = max(ends)[1], text[-1:] if text[-1:] not in "]>:" else ""
                continue
            if role:
                total[role] = total.get(role, 0) + 1
                counted[role] = counted.get(role, 0) + counts
    return {role: counted[role] / number for role, number in total.items()}


def _labels(tokens: int, counted: int, roles: Mapping[str, float]) -> Iterable[BatchFinding]:
    if counted == 0:
        yield BatchFinding(
            rule="nothing-trained",
            severity="error",
            message=f"no label counts: all of {tokens} tokens are masked, so the loss is NaN or 0",
            instead="compare the response template with the tokens it becomes; see the sample",
        )
        return
    if counted < _FEW_LABELS * tokens:
        yield BatchFinding(
            rule="few-labels",
            severity="warning",
            message=f"{counted} of {tokens} tokens count for the loss ({counted / tokens:.2%})",
            instead="see in the sample whether the answers are masked or cut off",
        )
    prompt = max((roles.get(role, 0.0) for role in ("user", "system")), default=0.0)
    if "assistant" in roles and roles["assistant"] < 0.5 <= prompt:
        yield BatchFinding(
            rule="prompt-trained",
            severity="error",
            message=f"the prompt is trained ({prompt:.0%} of its labels count) and the answer is"
            f" not ({roles['assistant']:.0%})",
            instead="swap the mask: labels of the prompt are -100, those of the answer count",
        )
    elif "assistant" in roles and prompt > 0.5:
        yield BatchFinding(
            rule="prompt-trained",
            severity="warning",
            message=f"the prompt is trained as well ({prompt:.0%} of its labels count)",
            instead="mask the prompt (assistant_only_loss, completion_only_loss), unless it is"
            " meant",
        )


def _padding(rows: Sequence[_Row]) -> Iterable[BatchFinding]:
    """Labels that count where attention_mask is 0."""
    each = [row.padding_counts for row in rows]
    if any(each):
        yield BatchFinding(
            rule="padding-trained",
            severity="error",
            message=f"padding counts for the loss: {sum(each)} labels in"
            f" {sum(map(bool, each))} of {len(rows)} rows, where attention_mask is 0",
            instead="set the labels of padding to -100: labels[attention_mask == 0] = -100",
        )


def _beginnings(rows: Sequence[_Row]) -> Iterable[BatchFinding]:
    """Rows of which only the beginning is trained on, which needs no tokenizer to see."""
    found = sum(map(_begins_only, rows))
    if found and found >= _NEARLY_ALL * len(rows):
        yield BatchFinding(
            rule="prompt-trained",
            severity="warning",
            message=f"in {found} of {len(rows)} rows only the beginning is trained and all that"
            " follows is masked: the prompt, it seems, in place of the answer",
            instead="swap the mask: labels of the prompt are -100, those of the answer count",
        )


def _begins_only(row: _Row) -> bool:
    """Whether the first tokens count, a beginning of text aside, and no later ones."""
    pairs = zip(row.ids, row.counts, row.seen, strict=True)
    seen = [(token, counts) for token, counts, attends in pairs if attends]
    trained = [place for place, (_, counts) in enumerate(seen) if counts]
    if not trained or trained[0] > 1 or trained[-1] - trained[0] >= len(trained):
        return False
    tail = [token for token, _ in seen[trained[-1] + 1 :]]
    # Equal ids at the end are padding that no mask names.
    while len(tail) > 1 and tail[-2] == tail[-1]:
        tail.pop()
    return len(tail) > _SHORTEST_ANSWER and len(set(tail)) >= _SHORTEST_ANSWER


def _agreement(rows: Sequence[_Row]) -> Iterable[BatchFinding]:
    """Labels that are neither the tokens at their place nor the next ones."""
    same = following = total = 0
    replaced: Counter[int] = Counter()
    for row in rows:
        if row.labels is None:
            continue
        ahead = [*row.ids[1:], IGNORED][: len(row.ids)]
        for token, following_token, label, counts in zip(
            row.ids, ahead, row.labels, row.counts, strict=True
        ):
            if counts:
                total += 1
                same += label == token
                following += label == following_token
                replaced[token] += 1
    if not total or same >= total / 2:
        return
    if following >= total / 2:
        yield BatchFinding(
            rule="labels-shifted",
            severity="info",
            message=f"labels are those of the next token ({following / total:.0%}): right for a"
            " loop that does not shift them",
            instead="models of transformers shift them once more: give such a model"
            " labels = input_ids",
        )
    # A masked language model has one id, the mask's, at most places that count.
    elif replaced.most_common(1)[0][1] < total / 2:
        yield BatchFinding(
            rule="labels-differ",
            severity="warning",
            message=f"labels are not the tokens: {same / total:.0%} equal input_ids at their"
            f" place, {following / total:.0%} those of the next place",
            instead="make labels a copy of input_ids, masked with -100 and not shifted, unless"
            " they are classes",
        )


def _not_checked(tokenizer: Decoder | None, roles: Mapping[str, float]) -> tuple[str, ...]:
    if tokenizer is None:
        return ("roles, end of text and cut answers were not checked: no tokenizer",)
    if not roles:
        return ("roles were not checked: no chat template shows",)
    return ()


def _special(rows: Sequence[_Row], tokenizer: Decoder | None) -> Iterable[BatchFinding]:
    bos, eos, pad = (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    real = [[t for t, seen in zip(r.ids, r.seen, strict=True) if seen] for r in rows]
    number = len(rows)
    if bos is not None and bos != eos:
        twice = sum(row[:2] == [bos, bos] for row in real)
        if twice:
            yield BatchFinding(
                rule="double-bos",
                severity="warning",
                message=f"{twice} of {number} rows begin with two beginning-of-text tokens",
                instead="the template writes one already: tokenize with add_special_tokens=False",
            )
    if eos is None or not number:
        return
    trained = sum(any(t == eos and c for t, c in zip(r.ids, r.counts, strict=True)) for r in rows)
    held = sum(eos in row for row in real)
    if trained == 0 and held and pad == eos:
        yield BatchFinding(
            rule="pad-is-eos",
            severity="error",
            message="padding and end of text are one token, and its label never counts: the model"
            " does not learn to stop",
            instead="give padding a token of its own, or mask by attention_mask, not by the id",
        )
    elif trained == 0:
        yield BatchFinding(
            rule="no-eos",
            severity="warning",
            message=f"no row of {number} trains an end-of-text token: the model does not learn to"
            " stop",
            instead="append the end-of-text token to each answer or document, and do not mask it",
        )
    if pad is not None and pad != eos:
        padded = sum(
            any(t == pad and c for t, c in zip(r.ids, r.counts, strict=True)) for r in rows
        )
        if padded:
            yield BatchFinding(
                rule="padding-trained",
                severity="error",
                message=f"padding counts for the loss in {padded} of {number} rows",
                instead="set the labels of padding to -100",
            )


def _cut(
    rows: Sequence[_Row], tokenizer: Decoder | None, max_length: int | None
) -> Iterable[BatchFinding]:
    lengths = [sum(row.seen) for row in rows]
    limit = max_length or max(lengths, default=0)
    eos = getattr(tokenizer, "eos_token_id", None)
    # Packed rows all have one length, and are cut by design.
    if eos is None or len(set(lengths)) < 2:
        return
    cut = sum(
        length >= limit and row.ids[: len(row.seen)][-1] != eos
        for row, length in zip(rows, lengths, strict=True)
    )
    if cut >= 2 and cut > 0.1 * len(rows):
        yield BatchFinding(
            rule="truncated",
            severity="warning",
            message=f"{cut} of {len(rows)} rows are cut at {limit} tokens",
            instead="raise the length, or leave such samples out: their answers have no end",
        )


def _repeated(rows: Sequence[_Row]) -> Iterable[BatchFinding]:
    different = len({tuple(row.ids) for row in rows})
    again = len(rows) - different
    if again and again >= 0.05 * len(rows):
        yield BatchFinding(
            rule="duplicates",
            severity="error" if different == 1 and len(rows) > 3 else "warning",
            message=f"{again} of {len(rows)} rows are copies of another in these batches",
            instead="see whether ranks or workers draw the same samples, then deduplicate",
        )


def _sample(rows: Sequence[_Row], tokenizer: Decoder | None) -> str:
    if not rows:
        return ""
    row = rows[0]
    first = row.counts.index(True) if any(row.counts) else 0
    start = max(0, first - _SAMPLE_TOKENS // 2)
    text, inside, all_counts = "", False, row.counts
    for i in range(start, min(start + _SAMPLE_TOKENS, len(row.ids))):
        between = " " if tokenizer is None and i > start else ""
        if all_counts[i] != inside:
            inside = all_counts[i]
            text += f"{between}《" if inside else f"》{between}"
        else:
            text += between
        text += str(row.ids[i]) if tokenizer is None else tokenizer.decode([row.ids[i]])
    return text + ("》" if inside else "")
