"""`trimtab supervise -- COMMAND`: run a training command, restart it where that helps."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from trimtab.errors import ConfigError
from trimtab.monitor.channels import parse_channels
from trimtab.monitor.notifier import Alarm, parse_command, parse_url
from trimtab.plan.policy import Policy
from trimtab.supervise.settings import SuperviseSettings, read_policy, read_settings
from trimtab.supervise.slurm import COME_BACK, come_back
from trimtab.supervise.supervisor import Job, supervise
from trimtab.text import plain

__all__ = ["add", "run"]

_DEFAULT_FOLDER = Path("runs/supervised")

_EPILOG = """\
exit status: the command's last one, 128 + N where signal N ended it; 3 where a hung or broken run
was stopped here and no restart helped, or ended in NaN; 127 and 126 where the command is missing or
may not be run; 2 for an option or a policy that is wrong
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "supervise",
        help="run a training command; detect hangs and crashes, restart from a checkpoint",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--run",
        dest="run_folder",
        metavar="DIR",
        type=Path,
        default=_DEFAULT_FOLDER,
        help=f"the supervisor's own folder: journal, copy of the output ({_DEFAULT_FOLDER})",
    )
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="TOML with the tables [supervise] and [policy]"
    )
    parser.add_argument(
        "--hang-after",
        metavar="S",
        type=float,
        help="seconds without a new step that are a hang; default: 3 x the median step + 8 s",
    )
    parser.add_argument(
        "--log",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="a log or TensorBoard folder that the command writes; may be repeated",
    )
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        type=Path,
        help="where the command writes checkpoints; default: as its flags say",
    )
    parser.add_argument(
        "--orphan",
        choices=("adopt", "terminate"),
        default="adopt",
        help="what to do with a command whose supervisor was killed",
    )
    parser.add_argument(
        "--slurm",
        choices=COME_BACK,
        default="never",
        help="inside a SLURM job that was ended in the midst: requeue it, or submit the next one",
    )
    parser.add_argument("--exec", metavar="CMD", dest="alert", help="as for watch")
    parser.add_argument("--webhook", metavar="URL", help="as for watch")
    parser.add_argument(
        "--notify", metavar="URL|@FILE", action="append", default=[], help="as for watch"
    )
    parser.add_argument("argv", metavar="-- CMD ...", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Supervise until the command is done."""
    argv = tuple(arguments.argv)
    if argv[:1] == ("--",):
        argv = argv[1:]
    if not argv or not argv[0]:
        what = "the command is empty" if argv else "no command"
        raise ConfigError(
            f"supervise: {what}; give it after --: trimtab supervise -- python train.py"
        )
    settings, policy = SuperviseSettings(), Policy()
    if arguments.policy is not None:
        settings = read_settings(arguments.policy)
        policy = read_policy(arguments.policy)
    if arguments.hang_after is not None:
        settings = replace(settings, hang_after_s=arguments.hang_after)
    job = Job(
        argv=argv,
        folder=arguments.run_folder,
        logs=tuple(arguments.log),
        checkpoints=arguments.checkpoints,
        on_orphan=arguments.orphan,
    )
    command = () if arguments.alert is None else parse_command(arguments.alert)
    url = "" if arguments.webhook is None else parse_url(arguments.webhook)
    people = parse_channels(arguments.notify)
    with Alarm(command=command, url=url, people=people) as alarm:
        told = alarm if command or url or people else None
        status = supervise(job, settings, policy=policy, alarm=told)
    if said := come_back(arguments.slurm, arguments.run_folder, status, os.environ):
        sys.stderr.write(f"trimtab supervise: {plain(said)}\n")
    return status
