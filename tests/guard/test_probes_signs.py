"""Early signs in a run: how often they are read, what is switched off, what Adam's state may not
be."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.guard.inner import look_closely
from tests.guard.test_probes import Model, layers_of
from tests.guard.tiny import Sequences, events_of, guard_of, make, rows_of, train_guarded
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.probes.moments import rms_ratio
from trimtab.guard.probes.output import LogZProbe
from trimtab.guard.probes.packs import pack
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def run(
    where: Path, *, steps: int, closely: bool = False, spoil: Any = None, **policy: Any
) -> list[dict[str, Any]]:
    """Train the model with attention.

    `spoil(model, optimizer, step)` is called before each step.
    """
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = Guard(
        model,
        optimizer,
        data=torch.utils.data.DataLoader(Sequences(64), batch_size=2),
        clip=1.0,
        steps=steps,
        run=where,
        policy=Policy(**policy),
        say=lambda _line: None,
    )
    if closely:
        look_closely(guard)
    for batch in guard:
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        guard.backward(loss)
        if spoil is not None:
            spoil(model, optimizer, guard.step_number + 1)
        guard.step()
    return rows_of(where)


def steps_with(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [row["step"] for row in rows if name in row]


def test_early_signs_are_read_more_often_early_and_while_something_is_wrong(tmp_path: Path) -> None:
    rows = run(tmp_path / "early", steps=24)
    for name in ("attention_entropy", "attention_logit_max", "output_log_z"):
        assert steps_with(rows, name) == [1, 4, 8, 10, 12, 16, 20, 24]
    assert steps_with(rows, "adam_v_l1") == steps_with(rows, "update_norm") == [1, 10, 20]
    rows = run(tmp_path / "close", steps=12, closely=True)
    assert steps_with(rows, "attention_entropy") == [1, 2, 4, 6, 8, 10, 12]
    rows = run(tmp_path / "thin", steps=12, probe_every_steps=6, probe_signs_every_steps=3)
    assert steps_with(rows, "attention_entropy") == [1, 3, 6, 9, 12]
    assert steps_with(rows, "adam_v_l1") == [1, 6, 12]


GIVES = {
    "hidden": "activation_norm",
    "batch": "batch_entropy",
    "gradients": "num_zeros",
    "moments": "adam_v_max",
    "update": "update_norm",
    "blocks": "activation_max",
    "attention": "attention_entropy",
    "log_z": "output_log_z",
}


@pytest.mark.parametrize("off", sorted(GIVES))
def test_a_probe_that_is_switched_off_gives_nothing_and_the_others_go_on(
    tmp_path: Path, off: str
) -> None:
    rows = run(tmp_path / "run", steps=10, probes_off=(off,))
    seen = {name for row in rows for name in row}
    assert GIVES[off] not in seen
    assert {signal for name, signal in GIVES.items() if name != off} <= seen
    assert events_of(tmp_path / "run", "fault", "note") == []


@pytest.mark.parametrize("width", [1, 2])
def test_one_output_is_no_softmax_and_has_no_log_z(width: int) -> None:
    layer = torch.nn.Linear(4, width)
    probe = LogZProbe(layer)
    probe.armed = True
    with torch.enable_grad():
        layer(torch.ones(3, 4))
    assert (probe.take() is None) is (width == 1)
    assert probe.num_outputs == width


def test_overflow_and_samples_can_be_switched_off(tmp_path: Path) -> None:
    def spoil(model: Any, _optimizer: Any, step: int) -> None:
        if step == 2:
            with torch.no_grad():
                model.output.weight.fill_(math.nan)

    rows = run(tmp_path / "run", steps=5, spoil=spoil, probes_off=("overflow", "samples"))
    assert math.isnan(rows[2]["loss"])
    assert not any("nonfinite_module" in row for row in rows)
    rows = run(tmp_path / "on", steps=5, spoil=spoil)
    assert any("nonfinite_module" in row for row in rows)


def test_a_probe_that_is_none_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="probes_off names 'atention', which is none; did you mean 'attention'"
    ):
        guard_of(make(), tmp_path / "run", policy=Policy(probes_off=("atention",)))


@pytest.mark.slow
@pytest.mark.covers("S2")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor's own import
@pytest.mark.parametrize("backend", [None, "eager", "inductor"])
def test_the_last_hidden_state_is_measured_with_compile_and_without(
    tmp_path: Path, backend: str | None
) -> None:
    s = make(dropout=0.0)
    by_hand: list[float] = []
    numbers = 0
    model: Any = s.model if backend is None else torch.compile(s.model, backend=backend)
    bare = s.model
    guard = Guard(
        model,
        s.optimizer,
        data=s.loader,
        steps=6,
        clip=1.0,
        run=tmp_path / "run",
        say=lambda _line: None,
    )
    for batch in guard:
        with torch.no_grad():
            hidden = bare.norm(functional.gelu(bare.hidden(bare.embedding(batch[:, :-1]))))
            by_hand.append(float(hidden.double().norm()))
            numbers = hidden.numel()
        logits = model(batch[:, :-1])
        guard.backward(functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        guard.step()
    # By the root of how many numbers there are, so that batches of other sizes compare.
    measured = [row["activation_norm"] * numbers**0.5 for row in rows_of(tmp_path / "run")]
    assert measured == pytest.approx(by_hand, rel=1e-5)
    assert events_of(tmp_path / "run", "fault") == []


def _nan_m(model: Any, optimizer: Any) -> None:
    optimizer.state[model.output.weight]["exp_avg"][0, 0] = math.nan


def _negative_v(model: Any, optimizer: Any) -> None:
    optimizer.state[model.blocks[1].qkv.weight]["exp_avg_sq"][3, 2] = -1.0


@pytest.mark.covers("S260")
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_nan_m, "output.weight: exp_avg is not finite"),
        (_negative_v, "blocks.1.qkv.weight: exp_avg_sq is negative"),
    ],
)
def test_adam_moments_that_make_no_sense_raise_an_alarm_naming_the_tensor(
    tmp_path: Path, damage: Any, named: str
) -> None:
    def spoil(model: Any, optimizer: Any, step: int) -> None:
        if step == 10:
            damage(model, optimizer)

    rows = run(tmp_path / "run", steps=12, spoil=spoil)
    assert rows[9]["adam_broken"] >= 1
    assert named in rows[9]["adam_broken_at"]
    assert any(named in e.data["text"] for e in events_of(tmp_path / "run", "note"))
    alarms = [
        e.data for e in events_of(tmp_path / "run", "finding") if e.data["severity"] != "info"
    ]
    assert ("adam_broken", "critical") in {(a["signal"], a["severity"]) for a in alarms}


@pytest.mark.covers("S260")
def test_a_second_moment_that_stays_zero_under_a_gradient_is_named(tmp_path: Path) -> None:
    class Forgetful(torch.optim.AdamW):
        """Loses one tensor's second moment in every step."""

        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            lost = self.param_groups[0]["params"][-2]
            self.state[lost]["exp_avg_sq"].zero_()
            return result

    torch.manual_seed(1)
    model = Model()
    guard = Guard(
        model,
        Forgetful(model.parameters(), lr=1e-3),
        steps=10,
        run=tmp_path / "run",
        data=torch.utils.data.DataLoader(Sequences(64), batch_size=2),
        say=lambda _line: None,
    )
    for batch in guard:
        logits = model(batch[:, :-1])
        guard.backward(functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        guard.step()
    named = rows_of(tmp_path / "run")[-1]["adam_broken_at"]
    assert named == "output.weight: exp_avg_sq is 0 where the gradient is not"


def test_a_sound_state_is_not_called_broken_with_dead_tensors_and_rare_rows(tmp_path: Path) -> None:
    rows = run(tmp_path / "run", steps=20)  # `dead` never has a gradient, most tokens are rare
    assert [row["adam_broken"] for row in rows if "adam_broken" in row] == [0.0, 0.0, 0.0]
    assert events_of(tmp_path / "run", "finding") == []


@pytest.mark.parametrize("which", ["weight", "exp_avg", "exp_avg_sq"])
def test_a_flipped_exponent_bit_is_told_within_one_reading(tmp_path: Path, which: str) -> None:
    def flip(tensor: Tensor) -> None:
        """Set the highest bit of one element's exponent."""
        tensor.view(torch.int32)[5, 3] |= 1 << 30

    def spoil(model: Any, optimizer: Any, step: int) -> None:
        weight = model.blocks[0].qkv.weight
        if step == 43:
            with torch.no_grad():
                flip(weight.data if which == "weight" else optimizer.state[weight][which])

    rows = run(tmp_path / "run", steps=50, spoil=spoil)
    signal = {"weight": "weight_max", "exp_avg": "adam_m_max", "exp_avg_sq": "adam_v_max"}[which]
    assert rows[39][signal] < 1e3
    found = [
        e.data for e in events_of(tmp_path / "run", "finding") if e.data["severity"] == "critical"
    ]
    assert any(f["onset"] == 50.0 or f["kind"] == "non-finite" for f in found)


def test_the_rms_ratio_is_one_for_normal_gradients_whose_variance_adam_knows() -> None:
    torch.manual_seed(0)
    wide, narrow = nn.Parameter(torch.zeros(300, 200)), nn.Parameter(torch.zeros(40, 50))
    optimizer = torch.optim.Adam([wide, narrow], lr=0.0, betas=(0.9, 0.99))
    for _ in range(300):
        wide.grad, narrow.grad = torch.randn(300, 200) * 3, torch.randn(40, 50) * 1e-4
        optimizer.step()
    wide.grad, narrow.grad = torch.randn(300, 200) * 3, torch.randn(40, 50) * 1e-4
    ratio = rms_ratio(optimizer, [wide, narrow])
    assert ratio is not None
    assert ratio[0] == pytest.approx(1.0, abs=0.15)
    narrow.grad = narrow.grad * 5
    wide.grad[0, 0] = 1e9  # one element without a past rules a mean, not a median
    ratio = rms_ratio(optimizer, [wide, narrow])
    assert ratio is not None
    assert ratio[1] == 1
    assert ratio[0] == pytest.approx(5.0, rel=0.15)


def test_packs_hold_every_element_once_with_its_share() -> None:
    torch.manual_seed(0)
    sizes = [(3, 4), (300, 300), (0, 5), (7,), (2, 2), (70_000,)]
    tensors = [torch.randn(s) for s in sizes]
    tensors.append(torch.randn(6).to(torch.bfloat16))
    shares = [1.0, 1.0, 1.0, 0.5, 1.0, 0.5, 1.0]
    packs = pack(tensors, shares)
    assert sorted(m for p in packs for m in p.members) == [0, 1, 3, 4, 5, 6]
    for p in packs:
        begin = 0
        for member, end in zip(p.members, p.ends, strict=True):
            assert torch.equal(p.flat[begin:end], tensors[member].flatten())
            assert p.share == shares[member]
            begin = end
        assert len(p.flat) == begin


@pytest.mark.parametrize("per_token", [False, True])
def test_samples_that_stand_out_of_their_batch_are_named(tmp_path: Path, per_token: bool) -> None:
    s = make(batch_size=14, dropout=0.0)
    guard = guard_of(s, tmp_path / "run", steps=5)
    for batch in guard:
        logits = s.model(batch[:, :-1])
        each = functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
        losses = each.detach().clone()
        if guard.step_number == 2:
            losses[9], losses[4] = 50.0, math.nan
        guard.backward(each.mean(), samples=losses if per_token else losses.mean(dim=1))
        guard.step()
    rows = rows_of(tmp_path / "run")
    assert [row.get("outlier_samples") for row in rows] == [None, None, "4 9", None, None]
    assert rows[0]["sample_loss_max"] >= rows[0]["loss"]


def test_a_loop_that_gives_no_sample_losses_has_none_logged(tmp_path: Path) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=3))
    assert "sample_loss_max" not in rows_of(tmp_path / "run")[0]


def test_early_readings_write_no_line_of_layers(tmp_path: Path) -> None:
    run(tmp_path / "run", steps=12)
    assert [row["step"] for row in layers_of(tmp_path / "run")] == [1, 10]
