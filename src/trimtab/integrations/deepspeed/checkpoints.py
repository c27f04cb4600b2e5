"""The tags that an engine's `save_checkpoint` writes: graded, completed, and `latest` kept true.

Beside each tag stands `TAG.trimtab.json`, manifest and grade; within it `trimtab.pt`, what the
guard needs to go on from it bit for bit, tensors and text only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trimtab.checkpoints.sidecar import SUFFIX, read_stamp, verify_stamped
from trimtab.integrations.lightning.checkpoints import LightningFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard import Guard

__all__ = ["TagFiles", "healthy_tag", "read_companion"]

_COMPANION = "trimtab.pt"


class TagFiles(LightningFiles):
    """The tags that are saved while an engine is guarded; all ranks call alike."""

    def __init__(self, guard: Guard, engine: Any) -> None:
        """Watch for a guard; only its first rank writes."""
        super().__init__(guard, ())
        self._engine = engine
        self._save: Callable[..., Any] = engine.save_checkpoint
        self._folders: set[Path] = set()

    def save(
        self,
        save_dir: str,
        tag: Any = None,
        client_state: Any = None,
        *args: Any,
        save_latest: bool = True,
        **more: Any,
    ) -> Any:
        """Save as the engine does; `latest` goes only to what is saved while calm."""
        guard = self._guard
        if guard.probing:  # the state that is there was saved, or will be gone back from
            return True
        calm = not guard._recovery.busy and not guard._recovery.alarmed
        name = f"global_step{self._engine.global_steps}" if tag is None else str(tag)
        if args:
            save_latest, args = bool(args[0]), args[1:]
        done = self._save(save_dir, name, client_state or {}, save_latest and calm, *args, **more)
        self.settle()
        folder = Path(save_dir) / name
        self._folders.add(Path(save_dir))
        companion: dict[str, Any] = {}
        guard._edge.run("checkpoint", lambda: companion.update(guard.companion()))
        guard._edge.run("checkpoint", lambda: self._complete(folder, companion))
        return done

    def rolled_back(self, step: int) -> None:
        """Grade what was saved after `step`, and point `latest` to the newest that is healthy."""
        super().rolled_back(step)
        self._guard._edge.run("checkpoint", self._point_back)

    def _complete(self, folder: Path, companion: dict[str, Any]) -> None:
        if self._guard._ranks.chief:
            if companion:
                torch.save(companion, folder / _COMPANION)
            self._stamp(folder)

    def _point_back(self) -> None:
        for folder in self._folders if self._guard._ranks.chief else ():
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

    None without.

    One that was saved without trimtab has no grade and is not found. Reads every byte of it.
    """
    graded = []
    for beside in Path(save_dir).glob(f"*{SUFFIX}"):
        folder = beside.with_name(beside.name.removesuffix(SUFFIX))
        known = read_stamp(folder)
        if known is not None and known.grade == "healthy":
            graded.append((known.step, folder))
    for _, folder in sorted(graded, reverse=True):
        if not verify_stamped(folder):
            return folder.name
    return None


def read_companion(folder: Path) -> dict[str, Any] | None:
    """Return what the guard added to a tag; None where it was saved without one."""
    path = folder / _COMPANION
    if not path.is_file():
        return None
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found
