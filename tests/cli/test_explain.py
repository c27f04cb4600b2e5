"""`trimtab explain`: the knowledge base on paper."""

import re
from collections.abc import Callable

import pytest

from tests.cli.conftest import parse
from trimtab.analysis.explain import explain, known_entries
from trimtab.diagnosis.kind_notes import KIND_NOTE_BY_NAME
from trimtab.diagnosis.look_alikes import LOOK_ALIKES
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.conflicts import CONFLICTS
from trimtab.plan.remedy_table import REMEDIES

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.covers("S240")
def test_clip_has_two_sides(run: Run) -> None:
    code, out, _ = run("explain", "clip", "--json")
    assert code == 0
    (entry,) = parse(out)["entries"]
    assert entry["id"] == "lower-clip"
    assert any("OPT-175B" in text for text in entry["said"]["worked"])
    assert any("Marin 32B" in text for text in entry["said"]["did not"])
    text = run("explain", "clip")[1]
    assert text.index("worked") < text.index("did not") < text.index("costs")
    assert "(OPT-175B logbook)" in " ".join(text.split())


def test_every_remedy_that_was_used_shows_each_run_and_source(run: Run) -> None:
    for remedy in REMEDIES:
        (entry,) = [e for e in explain(remedy.id) if e.type == "remedy"]
        said = dict(entry.said)
        assert said.get("worked", ()) == tuple(map(str, remedy.worked))
        assert said.get("did not", ()) == tuple(map(str, remedy.failed))


@pytest.mark.covers("S241")
def test_conflicts_lists_where_the_sources_disagree(run: Run) -> None:
    _, out, _ = run("explain", "--conflicts", "--json")
    found = {e["id"]: e for e in parse(out)["entries"]}
    assert {"beta2", "weight-decay-1.0", "6k-or-7k", "stable-attention"} <= set(found)
    for entry in found.values():
        assert len(entry["said"]["says"]) >= 2
        assert entry["said"]["read as"]
    assert any("0.1" in text for text in found["weight-decay-1.0"]["said"]["says"])
    assert "7 000" in " ".join(found["6k-or-7k"]["said"]["says"])


def test_every_kind_has_a_note_and_is_explained() -> None:
    assert set(KIND_NOTE_BY_NAME) == set(KIND_BY_NAME)
    for name in KIND_BY_NAME:
        entry = next(e for e in explain(name) if e.type == "kind")
        said = dict(entry.said)
        assert said["may be due to"]
        assert said["what may help"]


@pytest.mark.covers("S158")
def test_a_mode_of_failure_cites_runs_and_their_sources() -> None:
    cited = 0
    for name in KIND_BY_NAME:
        entry = next(e for e in explain(name) if e.type == "kind")
        for text in dict(entry.said).get("seen in", ()):
            run_name, told = text.split(": ", 1)
            assert run_name
            assert re.search(r"\([^()]+\)$", told), text  # the source, in brackets
            cited += 1
    assert cited >= 20


def test_every_entry_of_the_list_can_be_explained(run: Run) -> None:
    for entry in known_entries():
        assert (entry.type, entry.id) in {(e.type, e.id) for e in explain(entry.id)}
    _, out, _ = run("explain", "--list")
    assert all(e.id in out for e in known_entries())


def test_no_blank_is_left_open(run: Run) -> None:
    for entry in known_entries():
        for told in explain(entry.id):
            text = " ".join(t for _, texts in told.said for t in texts)
            assert "{f" not in text
            assert "{half_lr}" not in text
            assert "{to_step" not in text


def test_the_tables_point_at_what_exists() -> None:
    known = {e.id for e in known_entries()}
    assert {name for pair in LOOK_ALIKES for name in (pair.one, pair.other)} <= known
    assert {name for c in CONFLICTS for name in c.about} <= known


def test_a_kind_and_a_cause_of_one_name_are_both_told(run: Run) -> None:
    _, out, _ = run("explain", "repeated-data", "--json")
    assert [e["type"] for e in parse(out)["entries"]] == ["kind", "cause"]


def test_an_unknown_name_is_one_line_with_an_offer(run: Run) -> None:
    code, out, err = run("explain", "spkie")
    assert code == 2
    assert not out
    assert "perhaps spike" in err
    assert run("explain")[0] == 2


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("loss spike",), "spike"),
        (("loss", "spike"), "spike"),
        (("learning rate too high",), "learning-rate-too-high"),
        (("learning", "rate", "too", "high"), "learning-rate-too-high"),
        (("roll back to a healthy checkpoint before the first sign",), "roll-back"),
    ],
)
def test_titles_are_as_good_as_ids(run: Run, names: tuple[str, ...], found: str) -> None:
    code, out, _ = run("explain", *names, "--json")
    assert code == 0
    assert [e["id"] for e in parse(out)["entries"]] == [found]


def test_several_ids_are_several_entries(run: Run) -> None:
    _, out, _ = run("explain", "unrecovered-spike", "learning-rate-too-high", "--json")
    ids = [e["id"] for e in parse(out)["entries"]]
    assert ids == ["unrecovered-spike", "learning-rate-too-high"]


def test_the_word_of_a_finding_leads_to_its_kind(run: Run) -> None:
    code, out, _ = run("explain", "saturation", "--json")
    assert (code, [e["id"] for e in parse(out)["entries"]]) == (0, ["shift"])
