"""Runs before a supervised command, in its process: waits for the word, then becomes the command.

    python -I -S gate.py GO ERRORS STDOUT STDERR SUPERVISOR STARTED COMMAND ...

The supervisor writes down who runs before it gives the word. Where it is killed before that, the
pipe ends and this process ends with it: no command can run that nobody knows of. Nothing but the
standard library is imported, since this starts with every attempt.
"""

import contextlib
import os
import signal
import sys

PROCESS_NAME = "TRIMTAB_SUPERVISED_PROCESS"
"""Environment variable of the command: its process, the descriptors of its pipes, the process that
supervises it and the start of that. Its children inherit it, and are told by another number."""


def main() -> None:
    """Wait, and become the command; where that fails, its `errno` is written to ERRORS."""
    go, errors = int(sys.argv[1]), int(sys.argv[2])
    known, argv = sys.argv[3:7], [os.fsencode(word) for word in sys.argv[7:]]
    for descriptor in (go, errors):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - it has no keyword
    if os.read(go, 1) != b"+":
        os._exit(0)
    # What Python ignores for itself the command gets as it came.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_DFL)
    environment = {**_environment(), PROCESS_NAME.encode(): " ".join([_own(), *known]).encode()}
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(errors, str(error.errno or 0).encode())
    os._exit(127)


def _own() -> str:
    return str(os.getpid())


def _environment() -> dict[bytes, bytes]:
    """Return the environment as it was handed over: Python itself may add a locale to its own."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib is slow
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry)
        return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    main()
