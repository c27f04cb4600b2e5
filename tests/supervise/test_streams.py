"""What a command printed last, of two pipes that have no common order."""

import pytest

from trimtab.supervise.streams import Output


def test_lines_end_with_what_stderr_said_in_the_last_moment() -> None:
    output = Output(None, size_bytes=1 << 20)
    output.add(b"step 1 loss 2.9", 1)
    output.add(b"Traceback (most recent call last):\nAssertionError: bad", 2)
    output.add(b"00\nstep 2 loss 2.8\n", 1)
    output.add(b" config\n", 2)
    output.add(b"step 3 loss", 1)
    assert output.lines() == [
        "step 1 loss 2.900",
        "step 2 loss 2.8",
        "step 3 loss",
        "Traceback (most recent call last):",
        "AssertionError: bad config",
    ]


def test_lines_keep_the_order_of_what_came_well_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter((1.0, 2.0, 9.0))
    monkeypatch.setattr("trimtab.supervise.streams.time.monotonic", lambda: next(now))
    output = Output(None, size_bytes=1 << 20)
    output.add(b"warning: slow\n", 2)
    output.add(b"step 1\nstep 2\n", 1)
    output.add(b"step 3\n", 1)
    assert output.lines() == ["warning: slow", "step 1", "step 2", "step 3"]
