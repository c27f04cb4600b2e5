"""`trimtab doctor`: what is set up for a run that fails, hangs or overflows."""

from collections.abc import Callable

import pytest

from tests.cli.conftest import parse
from trimtab.cli.doctor_ready import readiness

Run = Callable[..., tuple[int, str, str]]
SET = {
    "fault tolerance": "TRIMTAB_SUPERVISE_DIR",
    "NCCL debugging": "NCCL_DEBUG",
    "hangs and deadlocks": "TORCH_FR_BUFFER_SIZE",
}


@pytest.mark.covers("S233")
def test_doctor_has_a_check_for_each_chapter_and_says_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = {r.topic: r for r in readiness({"PATH": "/nowhere", "TORCH_FR_BUFFER_SIZE": "0"})}
    assert [*bare] == [*SET, "under- and overflow"]
    assert all(not bare[topic].found and bare[topic].do for topic in SET)
    for name in SET.values():
        monkeypatch.setenv(name, "WARN")
    told = {r["topic"]: r["found"] or "" for r in parse(run("doctor", "--json")[1])["ready"]}
    assert all(name in told[topic] for topic, name in SET.items())
