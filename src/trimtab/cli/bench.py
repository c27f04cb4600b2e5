"""`trimtab bench …`: measures trimtab beside published rules and other readers, in a checkout."""

from typing import TYPE_CHECKING

from trimtab.cli.checkout import add_missing_command, load_benchmarks

if TYPE_CHECKING:
    import argparse

__all__ = ["add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command; its parts come from `benchmarks`."""
    benchmarks = load_benchmarks("cli")
    if benchmarks is None:
        add_missing_command(
            commands, "bench", "measure trimtab beside the published rules of others"
        )
    else:
        benchmarks.add(commands)
