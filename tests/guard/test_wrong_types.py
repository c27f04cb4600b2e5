"""What is no such thing is refused in one line that names it, whichever door it came through."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trimtab
from tests.guard.tiny import guard_of, make
from trimtab.errors import ConfigError, ReadError

pytestmark = pytest.mark.torch

RUN = {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.0]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scaler", "scaler is 5, expected a torch.amp.GradScaler"),
        ("output_layer", "output_layer is 5, expected the module"),
        ("say", "say is 5, expected a function"),
        ("count_tokens", "count_tokens is 5, expected a function"),
    ],
)
def test_an_argument_of_a_guard_that_is_no_such_thing(tmp_path: Path, name: str, said: str) -> None:
    s = make()
    given: dict[str, Any] = {"scaler": s.scaler, "scheduler": s.scheduler} | {name: 5}
    with pytest.raises(ConfigError, match=said):
        trimtab.Guard(s.model, s.optimizer, data=s.loader, run=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g: g.skip_list(5), r"skip_list\(5\): expected a path"),
        (lambda g: g.on_restore(5), r"on_restore\(5\): expected a function"),
        (lambda g: g.listen(5), r"listen\(5\): expected loggers"),
        (lambda g: g.on_checkpoint(5), r"on_checkpoint\(5\): expected a function"),
    ],
)
def test_a_call_by_hand_with_no_such_thing(
    tmp_path: Path, call: Callable[[Any], object], said: str
) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=3)
    with pytest.raises(ConfigError, match=said):
        call(guard)
    guard.close()


def test_the_front_door_with_no_such_thing(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("lr: 0.1", encoding="utf-8")
    wrong: Any = 5
    with pytest.raises(ConfigError, match="like is 5; give the name"):
        trimtab.preflight(config, like=wrong)
    for configs in (5, ["one"], ["one", 2]):
        given: Any = configs
        with pytest.raises(ConfigError, match="give two paths"):
            trimtab.compare(RUN, RUN, configs=given)
    for read in (trimtab.read, trimtab.analyze):
        with pytest.raises(ReadError, match="cannot be looked up"):
            read("a" * 5000)


def test_a_lazy_module_without_a_shape_is_refused_with_what_to_do(tmp_path: Path) -> None:
    s = make()
    s.model.output = torch.nn.LazyLinear(13)
    with pytest.raises(ConfigError, match=r"output\.weight of the model has no shape.*one batch"):
        guard_of(s, tmp_path / "run", steps=3)
