"""The first batches as the model sees them: labels, roles, special tokens, cuts, copies."""

from typing import Any, ClassVar

import numpy as np
import pytest

from trimtab.model_checks.batches import BatchReport, look_at_batches


class Letters:
    """A tokenizer of one token per character, with marks of a chat template as one token each."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0
    marks: ClassVar = {
        3: "<|im_start|>user\n",
        4: "<|im_start|>assistant\n",
        1: "<s>",
        2: "</s>",
        0: "<pad>",
    }

    def decode(self, token_ids: Any) -> str:
        return "".join(self.marks.get(t) or chr(t) for t in token_ids)


class PadIsEos(Letters):
    pad_token_id = 2


def chat(question: str, answer: str, *, train: str = "answer") -> tuple[list[int], list[int]]:
    """Return ids and labels of one exchange."""
    asked, said = [3, *map(ord, question)], [4, *map(ord, answer), 2]
    masked = [[-100] * len(part) for part in (asked, said)]
    labels = {
        "answer": [*masked[0], *said],
        "prompt": [*asked, *masked[1]],
        "both": [*asked, *said],
        "nothing": [*masked[0], *masked[1]],
    }[train]
    return [1, *asked, *said], [-100, *labels]


def report(rows: list[tuple[list[int], list[int]]], **options: Any) -> BatchReport:
    size = max(len(ids) for ids, _ in rows)
    batch = {
        "input_ids": np.array([ids + [0] * (size - len(ids)) for ids, _ in rows]),
        "labels": np.array([labels + [-100] * (size - len(ids)) for ids, labels in rows]),
        "attention_mask": np.array([[1] * len(i) + [0] * (size - len(i)) for i, _ in rows]),
    }
    return look_at_batches([batch], **{"tokenizer": Letters(), **options})


def rules(found: BatchReport) -> dict[str, str]:
    return {f.rule: f.severity for f in found.findings}


ROWS = [("how are you", "well"), ("who is it", "a friend of yours"), ("why", "nobody knows it")]


def test_answers_that_are_trained_are_in_order() -> None:
    found = report([chat(*row) for row in ROWS])
    assert found.findings == ()
    assert found.passed
    assert found.by_role["assistant"] == 1.0
    assert found.by_role["user"] == 0.0
    assert 0.3 < found.labels_share < 0.8
    assert "《" in found.sample
    assert "well" in found.sample


def test_nothing_trained_is_an_error() -> None:
    found = report([chat(*row, train="nothing") for row in ROWS])
    assert rules(found)["nothing-trained"] == "error"
    assert not found.passed


def test_the_prompt_in_place_of_the_answer_is_an_error() -> None:
    assert rules(report([chat(*r, train="prompt") for r in ROWS]))["prompt-trained"] == "error"
    assert rules(report([chat(*r, train="both") for r in ROWS]))["prompt-trained"] == "warning"


def test_special_tokens() -> None:
    twice = [([1, *ids], [-100, *labels]) for ids, labels in (chat(*row) for row in ROWS)]
    assert rules(report(twice)) == {"double-bos": "warning"}
    endless = [(ids[:-1], labels[:-1]) for ids, labels in (chat(*row) for row in ROWS)]
    assert rules(report(endless)) == {"no-eos": "warning"}
    masked = [(ids, [*labels[:-1], -100]) for ids, labels in (chat(*row) for row in ROWS)]
    assert rules(report(masked, tokenizer=PadIsEos())) == {"pad-is-eos": "error"}


def test_padding_that_counts_is_an_error() -> None:
    rows = [([*map(ord, "abc"), 2, 0, 0], [*map(ord, "abc"), 2, 0, 0])] * 1
    batch = {"input_ids": [rows[0][0]], "labels": [rows[0][1]]}
    assert rules(look_at_batches([batch], tokenizer=Letters()))["padding-trained"] == "error"


def bare(
    ids: list[list[int]], labels: list[list[int]], mask: list[list[int]] | None = None
) -> BatchReport:
    """Look at rows without a tokenizer."""
    return look_at_batches([{"input_ids": ids, "labels": labels, "attention_mask": mask}])


def test_labels_that_count_where_nothing_attends_are_an_error_and_no_part_of_the_share() -> None:
    ids = [[5, 6, 7, 8, 0, 0], [9, 6, 5, 8, 7, 0]]
    labels = [[-100, -100, 7, 8, 0, 0], [-100, -100, 5, 8, 7, 0]]
    mask = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
    found = bare(ids, labels, mask)
    assert rules(found) == {"padding-trained": "error"}
    assert "3 labels in 2 of 2 rows" in found.findings[0].message
    assert found.labels_share == pytest.approx(5 / 9)
    assert found.sample == "5 6 《7 8》 0 0"


PROMPT, ANSWER = [[11, 12, 13, 14, 15], [16, 12, 17]], [[21, 22, 23, 24], [25, 22, 26, 27]]


def test_only_the_beginning_of_each_row_trained_is_told_without_a_tokenizer() -> None:
    ids = [[*p, *a, 0, 0] for p, a in zip(PROMPT, ANSWER, strict=True)]
    first = [[*p, -100, -100, -100, -100, -100, -100] for p in PROMPT]
    assert rules(bare([ids[0]], [first[0]])) == {"prompt-trained": "warning"}
    assert rules(bare([ids[1]], [first[1]])) == {"prompt-trained": "warning"}
    # In one row of two it may be meant; padding and an end of text are no answer.
    mixed = look_at_batches(
        [{"input_ids": i, "labels": la} for i, la in ((ids[0], first[0]), (ids[1], ids[1]))]
    )
    assert rules(mixed) == {}
    assert rules(bare([ids[0]], [[*ids[0][:-3], -100, -100, -100]])) == {}
    # Where roles show, they are believed.
    assert rules(report([chat(*row) for row in ROWS])) == {}


def test_labels_that_are_not_the_tokens_are_a_warning() -> None:
    ids = [[11, 12, 13, 14, 15, 16, 17, 18]]
    unrelated = bare(ids, [[-100, -100, 33, 31, 38, 32, 37, 39]])
    assert rules(unrelated) == {"labels-differ": "warning"}
    twice = bare(ids, [[13, 14, 15, 16, 17, 18, -100, -100]])
    assert rules(twice)["labels-differ"] == "warning"
    once = bare(ids, [[12, 13, 14, 15, 16, 17, 18, -100]])
    assert rules(once) == {"labels-shifted": "info"}
    masked_model = bare(
        [[11, 4, 13, 4, 15, 16, 4, 18]], [[-100, 12, -100, 14, -100, -100, 17, -100]]
    )
    assert rules(masked_model) == {}


def test_cut_rows_and_copies() -> None:
    rows = [chat("q" * i, "a" * 30) for i in range(1, 9)]
    cut = [(ids[:30], labels[:30]) for ids, labels in rows]
    assert rules(report([*cut, chat("a", "b")]))["truncated"] == "warning"
    assert rules(report([chat(*ROWS[0])] * 4))["duplicates"] == "error"


def test_without_labels_and_tokenizer_everything_counts() -> None:
    found = look_at_batches([{"input_ids": [[5, 6, 7], [8, 9, 10]]}] * 9, num_batches=1)
    assert found.labels_share == 1.0
    assert found.rows == 2
    assert found.sample == "《5 6 7》"
    assert found.passed
    assert "no tokenizer" in " ".join(found.not_checked)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="no 'input_ids'"):
        look_at_batches([{"text": ["a"]}])
    with pytest.raises(ValueError, match="differ in shape"):
        look_at_batches([{"input_ids": [[1, 2]], "labels": [[1]]}])
