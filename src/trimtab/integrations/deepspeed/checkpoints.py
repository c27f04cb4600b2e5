"""The tags that an engine's `save_checkpoint` writes: graded, completed, and `latest` kept healthy.

Beside each tag is `TAG.trimtab.json`, manifest and grade; within it the companion that the
guard needs to resume from it bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.checkpoints.sidecar import SUFFIX, read_stamp, verify_stamped
from trimtab.integrations.companion_file import save_companion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from deepspeed import DeepSpeedEngine

    from trimtab.guard.port import TrainerPort
    from trimtab.integrations.graded_checkpoints import GradedCheckpoints

__all__ = ["TagFiles", "healthy_tag"]


class TagFiles:
    """The tags that are saved while an engine is guarded; all ranks call alike."""

    def __init__(
        self, port: TrainerPort, graded: GradedCheckpoints, engine: DeepSpeedEngine
    ) -> None:
        """Watch what an engine saves for a guard; only its first rank writes beside it."""
        self._port = port
        self._graded = graded
        self._engine = engine
        self._save: Callable[..., bool] = engine.save_checkpoint
        self._folders: set[Path] = set()

    def save(
        self,
        save_dir: str,
        tag: object = None,
        client_state: Mapping[str, object] | None = None,
        *args: object,
        save_latest: bool = True,
        **more: object,
    ) -> bool:
        """Save as the engine does; `latest` is set only to what is saved while calm."""
        port = self._port
        if port.probing:  # this state was saved already, or is about to be rolled back
            return True
        calm = not port.busy and not port.alarmed
        name = f"global_step{self._engine.global_steps}" if tag is None else str(tag)
        if args:  # save_latest by position
            save_latest, args = bool(args[0]), args[1:]
        # `latest` is what a plain restart loads: it stays at the last state saved while calm.
        done = self._save(save_dir, name, client_state or {}, save_latest and calm, *args, **more)
        self._graded.settle()
        folder = Path(save_dir) / name
        self._folders.add(Path(save_dir))
        companion: dict[str, object] = {}
        port.contain("checkpoint", lambda: companion.update(port.companion()))
        port.contain("checkpoint", lambda: self._complete(folder, companion))
        return done

    def rolled_back(self, step: int) -> None:
        """Grade what was saved after `step`, and point `latest` to the newest that is healthy."""
        self._graded.after_rollback(step)
        self._port.contain("checkpoint", self._point_back)

    def _complete(self, folder: Path, companion: dict[str, object]) -> None:
        if self._port.is_chief and companion:
            save_companion(folder, companion)
        self._graded.add(folder)

    def _point_back(self) -> None:
        for folder in self._folders if self._port.is_chief else ():
            latest = folder / "latest"
            if not latest.exists():
                continue
            found = read_stamp(folder / latest.read_text(encoding="utf-8").strip())
            if found is None or found.grade == "healthy":
                continue
            tag = healthy_tag(folder)
            if tag is None:
                latest.unlink()
            else:
                latest.write_text(tag, encoding="utf-8")


def healthy_tag(save_dir: str | Path) -> str | None:
    """Return the newest tag that is whole and healthy, for `load_checkpoint(save_dir, tag)`.

    None if there is none: a tag saved without trimtab has no grade. Reads every byte of it.
    """
    graded = []
    for beside in Path(save_dir).glob(f"*{SUFFIX}"):
        folder = beside.with_name(beside.name.removesuffix(SUFFIX))
        known = read_stamp(folder)
        if known is not None and known.grade == "healthy":
            graded.append((known.step, folder))
    for _, folder in sorted(graded, reverse=True):
        # Empty: no file is damaged. The newest first, since each check reads every byte.
        if not verify_stamped(folder):
            return folder.name
    return None
