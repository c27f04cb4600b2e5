"""What a repository alone suggested is turned off where that repository is judged."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.leave_out import read_origins, rules_off_for
from trimtab.detectors.offline import all_findings
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.errors import ConfigError
from trimtab.testing.curves import record_of

RECORDS = """
[spike]
what = "a"
where = "spike.py: detector spike"
suggested_by = ["a/one"]

[level.first]
what = "b"
where = "detector level"
suggested_by = ["a/one", "b/two"]

[hindsight]
what = "c"
where = "hindsight.py: hindsight_findings"
suggested_by = ["b/two"]
"""


def test_a_rule_is_off_only_for_the_repository_that_alone_suggested_it(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(RECORDS, encoding="utf-8")
    origins = read_origins(tmp_path)
    assert [o.rule for o in origins] == ["spike", "level.first", "hindsight"]
    assert rules_off_for("a/one", origins) == {"spike"}
    assert rules_off_for("b/two", origins) == {"hindsight_findings"}
    assert rules_off_for("c/three", origins) == frozenset()
    assert rules_off_for("b/two", origins, in_part=True) == {"hindsight_findings", "level"}


def test_the_records_of_this_project_can_be_read() -> None:
    origins = read_origins()
    assert {"spike", "hindsight"} <= {o.rule for o in origins}
    assert "scale-drift" in rules_off_for("bigscience-workshop/bigscience", origins)


def test_a_record_without_its_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[spike]\nwhat = "a"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[spike\] lacks where, suggested_by"):
        read_origins(tmp_path)


def test_rules_that_are_off_say_nothing() -> None:
    loss = 2.0 + 0.01 * np.random.default_rng(100).standard_normal(400)
    loss[300:320] += 1.0
    record = record_of(np.arange(1.0, 401.0), {"loss": loss})
    assert {"spike", "hindsight"} <= {f.detector for f in all_findings(record)}
    off = Sensitivity(off=frozenset({"spike", "hindsight_findings"}))
    assert not {"spike", "hindsight"} & {f.detector for f in all_findings(record, sensitivity=off)}
