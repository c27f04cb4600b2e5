"""One git commit that holds the archive of the curves, and nothing else; nothing is pushed."""

import os
import subprocess
from pathlib import Path

__all__ = ["commit_archive"]

_TIMEOUT_S = 120.0


def commit_archive(root: Path, archive: str, step: int) -> tuple[str, str]:
    """Commit a folder, where it lies in a git work tree.

    What is staged or changed elsewhere in the tree stays as it is.

    Returns:
        The commit, or why there is none; one of the two is empty.
    """
    place = root / archive
    message = f"Curves before the rollback to step {step}"
    try:
        _git(place.parent, "add", "--", place.name)
        if _git(place.parent, "status", "--porcelain", "--", place.name):
            _git(place.parent, "commit", "--quiet", "-m", message, "--", place.name)
        return _git(place.parent, "log", "-1", "--format=%H", "--", place.name), ""
    except FileNotFoundError:
        return "", "git is not installed; the archive was not committed"
    except subprocess.TimeoutExpired:
        return "", f"git took more than {_TIMEOUT_S:g} s; the archive was not committed"
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stderr or error.stdout or "no reason given").split())
        return "", f"the archive was not committed: {said[:300]}"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"},
    )
    return done.stdout.strip()
