"""The same few batches again and again, by their content."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.same_batch import SameBatchDetector
from trimtab.guard.probes.batch import batch_statistics
from trimtab.testing.contract import find_all

Floats = NDArray[np.float64]


def found(codes: Floats) -> list[Finding]:
    return list(find_all(SameBatchDetector(), {"batch_fingerprint": codes}))


def fresh(n: int) -> Floats:
    return np.random.default_rng(0).permutation(np.arange(1e6, 1e6 + n))


@pytest.mark.parametrize(("num", "within"), [(1, 16), (2, 16), (6, 64)])
def test_batches_that_come_again_and_again_are_told_soon_and_once(num: int, within: int) -> None:
    codes = fresh(700)
    codes[300:] = np.arange(400) % num
    (one,) = found(codes)
    assert one.onset_row == 300
    assert one.row < 300 + within
    assert (one.kind, one.severity, one.closed) == ("repeated-data", "warning", False)
    assert one.value == num


def test_it_is_over_where_new_ones_come() -> None:
    codes = fresh(700)
    codes[300:400] = 7.0
    told, over = found(codes)
    assert told.key == over.key
    assert over.end_row is not None
    assert 400 <= over.end_row <= 410


@pytest.mark.parametrize("num", [1, 2, 5, 30])
def test_data_of_a_few_batches_and_training_on_one_are_quiet(num: int) -> None:
    assert found(np.arange(1000.0) % num) == []


def test_a_batch_of_fewer_rows_now_and_then_twice_is_quiet() -> None:
    codes = fresh(700)
    codes[301:310] = codes[300]
    assert found(codes) == []


def test_a_batch_is_known_by_its_content() -> None:
    one, other = torch.randn(64, 33), torch.randn(64, 33)
    labels = torch.zeros(64, dtype=torch.long)
    codes = [batch_statistics((x, labels))["batch_fingerprint"] for x in (one, other, one.clone())]
    assert codes[0] == codes[2] != codes[1]


def test_what_is_not_finite_in_a_batch_is_counted_and_whole_numbers_are_seen() -> None:
    x = torch.randn(8, 5)
    x[2, 3], x[4, 1] = float("nan"), float("inf")
    seen = batch_statistics({"x": x, "more": [torch.ones(3)]})
    assert (seen["batch_nonfinite"], seen["batch_integers"]) == (2.0, 0.0)
    large = torch.full((4,), 3e38)
    seen = batch_statistics((large, torch.zeros(4, dtype=torch.long)))
    assert (seen["batch_nonfinite"], seen["batch_integers"]) == (0.0, 1.0)


def test_a_batch_without_tensors_says_nothing() -> None:
    assert batch_statistics(["a", 3]) == {}
