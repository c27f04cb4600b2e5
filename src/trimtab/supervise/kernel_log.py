"""What the kernel said since a command was started, where its log may be read."""

import errno
import os
import time

__all__ = ["kernel_lines"]

_MAX_LINES = 400
_RECORD_BYTES = 8192


def kernel_lines(since: float) -> tuple[str, ...]:
    """Return the lines of the kernel's log since a time; none where it may not be read.

    Args:
        since: Seconds since the epoch.
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    lines: list[str] = []
    try:
        while True:
            try:
                record = os.read(log, _RECORD_BYTES).decode("utf-8", "replace")
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten while it was read
                    continue
                break
            head, _, text = record.partition(";")
            parts = head.split(",")
            if len(parts) > 2 and parts[2].isdigit() and booted + int(parts[2]) / 1e6 >= since:
                lines.append("kernel: " + text.split("\n", 1)[0])
                lines = lines[-_MAX_LINES:]
    finally:
        os.close(log)
    return tuple(lines)
