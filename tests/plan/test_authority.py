"""What may be done without a person: permissions, daily limits, the form in a file."""

from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.plan.authority import ACTION_CLASSES, Authority
from trimtab.plan.policy import Policy


def test_everything_may_act_unless_said_otherwise() -> None:
    found = {c: Policy().permissions.permission(c) for c in ACTION_CLASSES}
    assert (
        found.pop("raise-rate") == "never"
    )  # those who raised their rates again called it a failure
    assert set(found.values()) == {"act"}
    assert not Policy().permissions.why_not("raise-rate")
    limited = Authority(allowed={"raise-rate": "act"}, per_day={"raise-rate": 0})
    assert limited.why_not("raise-rate") == "0 × raise-rate within 24 hours, the policy allows 0"


def test_a_file_names_classes_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[policy]\nmode = "act"\nask_deadline_s = 60\nat_deadline = "act"\n'
        '[policy.authority]\nskip-data = "ask"\nrestart = "never"\n'
        "[policy.per_day]\nrestore = 2\n"
    )
    found = Policy.from_toml(path).permissions
    assert found == Authority(
        allowed={"skip-data": "ask", "restart": "never"},
        per_day={"restore": 2},
        ask_deadline_s=60,
        at_deadline="act",
    )
    assert found.permission("restore", used_today=1) == "act"
    assert found.permission("restore", used_today=2) == "never"
    assert found.why_not("restore", used_today=2).startswith("2 × restore within 24 hours")
    assert "never" in found.why_not("restart")
    assert not found.why_not("skip-data")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"authority": {"skip": "ask"}}, "did you mean 'skip-data'"),
        ({"authority": {"restore": "maybe"}}, "expected never, ask or act"),
        ({"authority": "ask"}, "expected a table"),
        ({"per_day": {"restore": -1}}, "expected a whole number"),
        ({"per_day": {"restore": True}}, "expected a whole number"),
        ({"ask_deadline_s": 0}, "ask_deadline_s is 0"),
        ({"ask_deadline_s": float("nan")}, "ask_deadline_s is nan"),
        ({"at_deadline": "later"}, "expected wait, never or act"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Policy.from_mapping(values)
