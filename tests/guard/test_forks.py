"""A process that the loop body forks.

It has none of the guard's duties, and cannot hold on to its run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
]

STOPPED = """
import os, signal
from trimtab.guard.loop.signal_handler import Interrupts

watch = Interrupts(print)
watch.watch()
watch.step_begins()
for number in (signal.SIGTERM, signal.SIGINT):
    child = os.fork()
    if child == 0:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            os._exit(42)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(watch.is_wanted())
"""

ORPHAN = """
import os, sys
from pathlib import Path
from trimtab.errors import ChronicleError
from trimtab.guard.recording.run_lock import RunLock

root, (waiting, go) = Path(sys.argv[1]), os.pipe()
holder = os.fork()
if holder == 0:
    lock = RunLock(root)
    if os.fork() == 0:
        os.close(go)
        os.read(waiting, 1)  # lives until the test is over
        os._exit(0)
    try:
        RunLock(root)
    except ChronicleError:
        print("held", flush=True)
    os.kill(os.getpid(), 9)
os.waitpid(holder, 0)
RunLock(root).release()
print("free")
"""


def run(script: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_forked_process_is_stopped_by_a_signal_as_without_a_guard() -> None:
    assert run(STOPPED) == ["-15", "42", "False"]


@pytest.mark.slow
def test_a_forked_process_does_not_hold_the_run_of_a_killed_one(tmp_path: Path) -> None:
    assert run(ORPHAN, str(tmp_path / "run")) == ["held", "free"]
