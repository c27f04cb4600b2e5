"""The names of `Guard` that scripts use: none of them goes away."""

import inspect

from trimtab.guard import Guard
from trimtab.guard.control.control import Control

NAMES = """
actions backward change_data checkpoint clip_gradients close companion coverage covers data_epoch drop_batch
epoch epoch_is_over expect finish go_on_after incidents last_norm limit_lr listen lr_factor next_lr
note_loss note_signals num_incidents on_checkpoint on_restore override_lr phase probing reset_moments roll_back
scale_lr schedule_weight_decay set_loss_scale set_optimizer skip_list skip_samples skipped_samples
start_over step step_is_due step_number tighten_clip undo wasted_steps
"""

KEYWORDS = """
self model optimizer data run mode policy scheduler scaler clip steps resume start_over check_resume
output_layer count_tokens accumulate extra loaded_step companion detectors thresholds say
validate
"""

BY_HAND = """
change_data checkpoint drop_batch expect limit_lr override_lr reset_moments roll_back scale_lr
schedule_weight_decay set_loss_scale set_optimizer skip_list skip_samples start_over tighten_clip
undo
"""


def test_guard_keeps_its_methods_and_properties() -> None:
    assert [name for name in dir(Guard) if not name.startswith("_")] == NAMES.split()


def test_guard_keeps_its_keywords() -> None:
    assert list(inspect.signature(Guard.__init__).parameters) == KEYWORDS.split()


def test_guard_is_one_class_without_a_base_of_ours() -> None:
    assert Guard.__mro__ == (Guard, object)


def test_guard_control_has_all_that_is_done_by_hand() -> None:
    assert [name for name in dir(Control) if not name.startswith("_")] == sorted(BY_HAND.split())
    for name in BY_HAND.split():
        assert getattr(Guard, name) is getattr(Control, name)  # signature and docstring are one
