"""The settings of the guard: what it may do, how long it waits, how far it goes.

One frozen dataclass, `Policy`, read from TOML with `Policy.from_toml`. A key that is not a setting
is an error that offers the nearest name; a value that makes no sense is refused when the policy is
made, not when the run is in trouble.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from trimtab.bounded_toml import read_toml_text
from trimtab.errors import ConfigError
from trimtab.plan.authority import AtDeadline, Authority, Permission
from trimtab.plan.probe_names import PROBES
from trimtab.plan.trials import ARM_BY_ID, DEFAULT_ORDER
from trimtab.text import is_number, plain

__all__ = ["Mode", "Policy", "Reads", "check_tables"]

Mode = Literal["observe", "advise", "act"]
OnGiveUp = Literal["advise", "stop"]
Bisect = Literal["never", "when-stuck", "always"]
Reads = Literal["auto", "now", "late"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the guard may do.

    Example:
        >>> Policy(mode="act").lr_factors[0]
        0.5
        >>> Policy(max_rollbacks=-1)
        Traceback (most recent call last):
        trimtab.errors.ConfigError: max_rollbacks is -1, expected a whole number of at least 0
    """

    mode: Mode = "observe"
    """observe: record and judge; advise: also print plans; act: also carry them out. Ours."""

    certificate: str = ""
    """File or folder with the certificate of this machine, which `trimtab doctor --qualify` writes;
    the run directory is looked in first. On an accelerator without one that fits, act is advise."""
    act_uncertified: bool = False
    """Act on an accelerator without a certificate all the same; journalled."""
    patience_steps: int = 8
    """Steps a spike is trained through before acting, optimizer steps. BLOOM's 2022 spike healed by
    itself in about 30; shorter because our trials are cheap. Chosen on the lab, seeds 0-9."""
    healing_steps: int = 32
    """Further steps that a spike is given while its loss is on the way back, optimizer steps; then
    it is acted on. BLOOM's 2022 spike healed by itself in about 30."""
    spikes_trained_through: int = 2
    """Spikes that may heal by themselves within `spike_horizon_steps` before the next one is acted
    on at once, count. BLOOM had one in its whole run. Chosen on the lab, seeds 0-1."""
    spike_horizon_steps: int = 256
    """Distance over which spikes that healed are counted, optimizer steps. Ours."""
    snapshot_every_steps: int = 20
    """Distance of in-memory snapshots, optimizer steps. Ours: one copy of the state costs less than
    a step, so at 20 it stays below the overhead budget."""
    snapshot_time_share: float = 0.02
    """Most of the time that copying snapshots from an accelerator may take, share: above it their
    distance doubles, up to 64 times `snapshot_every_steps`. Ours; of 1.2 billion parameters on one
    H200 a copy takes longer than a step."""
    snapshots_kept: int = 16
    """Most in-memory snapshots in the ring, count; fewer where the budget holds no more. Ours: 16 x
    20 steps reach back 320 steps."""
    snapshot_memory_gib: float = 0.0
    """Most host memory of the snapshots of one rank, GiB; 0: `snapshot_memory_share`. `trimtab plan
    guard` prints what a run needs."""
    snapshot_memory_share: float = 0.5
    """Share of the host's free memory at the start that the snapshots of all its ranks may take
    together. Ours: activations and the optimizer's state of a CPU run come after the start."""
    spill_to: str = ""
    """Folder on a fast local disk to which snapshots are written while training goes on; memory
    then holds only what is being written. Empty: none."""
    checkpoint_every_steps: int = 200
    """Distance of on-disk checkpoints, optimizer steps. Ours; BigScience went to 300 while tr8-104B
    was unstable."""
    checkpoint_every_steps_unsettled: int = 50
    """Distance of on-disk checkpoints while what was done is being verified, optimizer steps; the
    smaller of both holds. BigScience saved every 300 instead of 1500 while tr8-104B was
    unstable."""
    checkpoint_in_background: bool = True
    """Copy the state and write a scheduled checkpoint while training continues; False: training
    waits until it is on disk. Ours."""
    checkpoints_kept: int = 5
    """Healthy on-disk checkpoints kept, count; pinned ones do not count. Ours."""
    copy_to: str = ""
    """Folder, best on another disk, in which the run gets a copy of its checkpoints and records
    under its own name; a run that lost its directory continues from there. Empty: none."""
    sync_rows_every_steps: int = 50
    """Most rows of the signals that a power cut may take, optimizer steps; a kill takes none, and
    events and checkpoints are on disk before the run goes on. Ours: below 1 % of a 100 ms step on
    a local disk."""
    sync_rows_every_s: float = 5.0
    """Age of the oldest row not yet on disk at which the next step brings all of them there,
    seconds. Ours."""

    reads: Reads = "auto"
    """When loss and norm are read on the host. now: when the step is done, the host waits for the
    device; late: in a calm step at the start of the next one, before its update, so that the device
    is never waited for; auto: late on a GPU, now elsewhere. Ours; on an H100 and an H200
    late gave the losses and actions of now, bit for bit, and a calm step cost nothing."""
    probe_every_steps: int = 10
    """Distance of full readings of the model and the optimizer, optimizer steps. Ours: their cost
    stays below 1 % of a step so."""
    probe_signs_every_steps: int = 10
    """Distance of readings of attention and log Z, optimizer steps; 4 early in a run and 2 while
    something is wrong. Ours."""
    probes_off: tuple[str, ...] = ()
    """Probes that are left out, by name as in `plan.probe_names.PROBES`."""

    yardstick_share: float | None = None
    """Most of the time that is spent on reading a few fixed batches in eval mode while the run is
    calm, share; 0: they are not read, in trouble neither. None: 0.01 in `act`, where the loop is
    handed batches of the guard's own anyway, and with `Guard(validate=)`; else 0. Ours."""
    yardstick_batches: int = 2
    """Fixed batches of the yardstick, count; more are read less often. Ours."""

    rollback_margin_steps: int = 2
    """Steps between the restore point and the first sign, at least. Ours."""
    max_rollbacks: int = 6
    """Rollbacks that stayed in force before the guard gives up and only advises, count. Ours."""
    max_failures: int = 4
    """Recoveries in a row that did not hold before the guard gives up, count. Ours."""
    trial_steps: int = 48
    """Length of one trial branch, optimizer steps. Chosen on the lab, seeds 0-9."""
    bisect: Bisect = "when-stuck"
    """When to separate causes by further branches. when-stuck: once neither the data left out nor a
    lower rate held; always: in every incident, before a remedy is chosen; never. Ours."""
    arms: tuple[str, ...] = DEFAULT_ORDER
    """Branches that may be tried, in this order, by their ids in `trimtab.plan.trials`; what is
    left out is never tried. Cheapest for its prior first."""
    trial_budget_steps: int = 768
    """Most steps spent on the branches of one incident, optimizer steps. Ours: 16 trials."""
    past_runs: tuple[str, ...] = ()
    """Run directories whose outcomes count as experience too: what worked there in the same kind of
    incident is tried first."""
    lr_factors: tuple[float, ...] = (1 / 2, 1 / 4, 1 / 10, 1 / 30)
    """Learning-rate factors tried, mildest first, no unit. 1/2 as tr8-104B did; the rest ours."""
    lr_factor_saturating: float = 1 / 30
    """Mildest factor that is tried where attention saturated: milder ones look better in a short
    branch and end worse, saturated again or too noisy. Chosen on the lab, seed 0."""
    lr_factor_rising: float = 1 / 10
    """Mildest factor that is tried where the rate was still rising, as in a warm-up, and none was
    proven: of the rate at the first sign, and held there. Chosen on the lab, seeds 0-5, after a
        miss at seed 101."""
    lr_factor_returning: float = 1 / 10
    """Mildest factor that is tried where spikes return. Chosen on the lab, seeds 0-3."""
    lr_jump_ratio: float = 1.5
    """Rise of the learning rate in force between restore point and onset above which the old rate
    is tried first, ratio. Ours: a warm-up or cosine schedule moves less in a snapshot's
    distance."""
    lr_raise_allowed: bool = False
    """Always False: the guard lowers a learning rate and never raises one. OPT-175B and IDEFICS-80B
    raised theirs during a run, and both counted it as a failure."""
    better_by: float = 0.002
    """How much lower a stronger cut must bring the loss to be taken over a milder one that also
    held, share of the descent so far (30 to 200 sigma of the loss). Ours."""

    on_give_up: OnGiveUp = "advise"
    """What to do when nothing is left to try. advise: the run continues, advice follows; stop: the
    run is saved and ended with exit code 3, for a person to look."""

    verify_steps: int = 64
    """Steps after a rollback before the outcome is judged, optimizer steps. Ours."""
    verify_tolerance: float = 0.01
    """Distance from the pre-onset trend that counts as back on it, share of the descent so far
    (30 to 200 sigma of the loss). Ours."""
    cooldown_steps: int = 64
    """Steps after an action in which no second one is started, optimizer steps; non-finite values
    are exempt. Ours: the length of one verification."""

    probe_margin_batches: int = 20
    """Batches looked at on either side of the onset when upcoming data is probed, count. Ours."""
    max_skip_share: float = 0.1
    """Most of the planned data that may be left out in all, share of the planned steps. Ours; PaLM
    left out 200-500 batches at each of about 20 spikes, far less than this."""
    max_wasted_share: float = 0.6
    """Most steps that may be off the final lineage, trials included, share of effective steps.
    Above 1: more than the whole run takes; above 4 is taken for a slip. Ours."""

    authority: Mapping[str, Permission] = field(default_factory=dict)
    """What may be done without a person: never, ask or act for each class of action, as listed in
    `plan.authority.ACTION_CLASSES`. A class that is not named may act, as far as `mode` allows, but
    for raise-rate, which is `never`."""
    per_day: Mapping[str, int] = field(default_factory=dict)
    """Most actions of a class within 24 hours, count; beyond it the class is `never`. Empty: no
    limit."""
    ask_deadline_s: float = 3600.0
    """How long an answer to a staged action is waited for, seconds; training goes on. Ours."""
    at_deadline: AtDeadline = "wait"
    """What holds for a staged action without an answer. wait: nothing is done and the request stays
    open; never: as if denied; act: as if approved. Ours."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        if self.mode not in get_args(Mode):
            raise ConfigError(f"mode is {self.mode!r}, expected one of {', '.join(get_args(Mode))}")
        if self.on_give_up not in get_args(OnGiveUp):
            raise ConfigError(f"on_give_up is {self.on_give_up!r}, expected advise or stop")
        if self.reads not in get_args(Reads):
            raise ConfigError(
                f"reads is {self.reads!r}, expected one of {', '.join(get_args(Reads))}"
            )
        if self.bisect not in get_args(Bisect):
            raise ConfigError(
                f"bisect is {self.bisect!r}, expected one of {', '.join(get_args(Bisect))}"
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name} is {value!r}, expected a whole number of at least {least}"
                )
            if value > _MOST:
                raise ConfigError(f"{name} is {value:g}, expected at most {_MOST}")
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not is_number(value) or not low < value <= high:
                raise ConfigError(
                    f"{name} is {value!r}, expected a number above {low:g} and at most {high:g}"
                )
        share: object = self.yardstick_share
        if share is not None and (not is_number(share) or not 0 <= share <= 1):
            raise ConfigError(f"yardstick_share is {share!r}, expected a number from 0 (off) to 1")
        for name in ("checkpoint_in_background", "act_uncertified"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected true or false")
        for name in ("copy_to", "spill_to", "certificate"):
            folder: object = getattr(self, name)
            if not isinstance(folder, str) or "\0" in folder:
                raise ConfigError(
                    f'{name} is {folder!r}, expected a folder as text, or "" for none'
                )
        gib: object = self.snapshot_memory_gib
        if not is_number(gib) or not 0 <= float(self.snapshot_memory_gib) < float("inf"):
            raise ConfigError(
                f"snapshot_memory_gib is {gib!r}, expected a number of GiB, or 0 for a share of"
                " what is free"
            )
        if self.lr_raise_allowed is not False:
            raise ConfigError(
                "lr_raise_allowed must stay false: the guard never raises a learning rate; "
                "change the schedule yourself and resume"
            )
        self._check_factors()
        self._check_names()
        _ = self.permissions  # refuses what is impossible

    def __new__(cls, **given: object) -> "Policy":
        """Refuse a keyword that is no setting with the nearest one, as a file's key is refused.

        Raises:
            ConfigError: One of them is no setting.
        """
        cls._check_known(given, "Policy: ")
        return super().__new__(cls)

    @classmethod
    def _check_known(cls, given: Mapping[str, object], where: str) -> None:
        names = [f.name for f in dataclasses.fields(cls)]
        for key in given:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"settings are {', '.join(names)}"
                raise ConfigError(f"{where}{key!r} is not a setting; {hint}")

    @property
    def permissions(self) -> Authority:
        """What may be done without a person, as one value that the supervisor reads, too."""
        return Authority(
            allowed=self.authority,
            per_day=self.per_day,
            ask_deadline_s=self.ask_deadline_s,
            at_deadline=self.at_deadline,
        )

    def _check_names(self) -> None:
        for name, known in (("arms", tuple(ARM_BY_ID)), ("probes_off", PROBES), ("past_runs", ())):
            value: object = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(x, str) for x in value):
                raise ConfigError(f"{name} is {value!r}, expected a list of texts")
            for one in value:
                if known and one not in known:
                    near = difflib.get_close_matches(one, known, n=1, cutoff=0.5)
                    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
                    raise ConfigError(f"{name} names {one!r}, which is none; {hint}")
        if len(set(self.arms)) < len(self.arms):
            raise ConfigError(f"arms is {self.arms!r}, expected each at most once")

    def _check_factors(self) -> None:
        factors: object = self.lr_factors
        if not isinstance(factors, tuple) or not all(is_number(f) and 0 < f < 1 for f in factors):
            raise ConfigError(f"lr_factors is {factors!r}, expected numbers between 0 and 1")
        if not factors or list(factors) != sorted(set(factors), reverse=True):
            raise ConfigError(f"lr_factors is {factors!r}, expected falling values, mildest first")

    @classmethod
    def from_mapping(cls, table: Mapping[str, object], *, source: str = "policy") -> "Policy":
        """Return the policy that a table of settings describes; what it leaves out is default.

        Args:
            table: Settings by name; a list is taken where a tuple is meant.
            source: What to name in an error.

        Raises:
            ConfigError: A key is no setting, or a value is impossible.
        """
        cls._check_known(table, f"{source}: ")
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in table.items()
        }
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error

    @classmethod
    def from_toml(cls, path: str | Path) -> "Policy":
        """Return the policy that a TOML file describes: its `[policy]` table, or the whole file.

        Beside `[policy]`, other tables and keys are other people's; a setting of ours there is
        refused.

        Raises:
            ConfigError: The file cannot be read, is not TOML, or says something impossible.
        """
        path = Path(path)
        try:
            table = read_toml_text(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read ({error.strerror}); give a TOML file"
            ) from error
        except ValueError as error:  # no TOML, no UTF-8, or beyond a bound
            raise ConfigError(f"{path}: is not TOML ({error})") from error
        inner = table.get("policy", table)
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: 'policy' is {inner!r}, expected a table: [policy]")
        if "policy" in table:
            check_tables(table, path)
        names = {f.name for f in dataclasses.fields(cls)}
        beside = sorted(names & set(table)) if "policy" in table else []
        if beside:
            raise ConfigError(
                f"{path}: {', '.join(beside)} stands beside [policy] and would not be read; "
                "move it into that table"
            )
        return cls.from_mapping(inner, source=str(path))


def check_tables(table: Mapping[str, object], path: Path) -> None:
    """Refuse a table of a policy file whose name is next to one of ours.

    Raises:
        ConfigError: There is one; it would be passed over in silence.
    """
    for name in table:
        near = difflib.get_close_matches(name.lower(), _TABLES, n=1, cutoff=0.75)
        if name not in _TABLES and near:
            raise ConfigError(
                f"{path}: [{plain(name, limit=40)}] is no table of a policy file; did you mean"
                f" [{near[0]}]?"
            )


_TABLES = ("policy", "supervise")
"""Tables that are read of a policy file; others are other people's."""

_LEAST: Mapping[str, int] = {
    "patience_steps": 0,
    "healing_steps": 0,
    "max_failures": 1,
    "trial_budget_steps": 1,
    "spikes_trained_through": 0,
    "spike_horizon_steps": 1,
    "snapshot_every_steps": 1,
    "snapshots_kept": 1,
    "checkpoint_every_steps": 1,
    "checkpoint_every_steps_unsettled": 1,
    "checkpoints_kept": 1,
    "sync_rows_every_steps": 1,
    "probe_every_steps": 1,
    "probe_signs_every_steps": 1,
    "rollback_margin_steps": 0,
    "max_rollbacks": 0,
    "trial_steps": 1,
    "verify_steps": 1,
    "cooldown_steps": 0,
    "probe_margin_batches": 0,
    "yardstick_batches": 1,
}
"""Whole-number settings and their least value."""

_MOST = 10**12
"""Most that any of them can mean: more is a slip."""

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "snapshot_memory_share": (0.0, 1.0),
    "snapshot_time_share": (0.0, 1.0),
    "lr_factor_saturating": (0.0, 1.0),
    "lr_factor_returning": (0.0, 1.0),
    "lr_jump_ratio": (1.0, 1e6),
    "better_by": (0.0, 1.0),
    "verify_tolerance": (0.0, 1.0),
    "sync_rows_every_s": (0.0, 1e6),
    "max_skip_share": (0.0, 1.0),
    "max_wasted_share": (0.0, 4.0),
}
"""Real-valued settings, each above the first and at most the second."""
