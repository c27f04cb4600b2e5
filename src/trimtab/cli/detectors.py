"""Options that choose further detectors and change settings, for the commands that judge a log."""

import argparse

from trimtab.detectors.judge import Judge, make_judge

__all__ = ["add_detector_options", "judge_of"]


def add_detector_options(parser: argparse.ArgumentParser) -> None:
    """Add `--detectors` and `--threshold`."""
    parser.add_argument(
        "--detectors",
        metavar="NAME",
        action="append",
        default=[],
        help=(
            "also use the detector that an installed package declares by this name in the entry"
            " point group trimtab.detectors; may be given again"
        ),
    )
    parser.add_argument(
        "--threshold",
        metavar="DETECTOR.SETTING=VALUE",
        action="append",
        default=[],
        type=_threshold,
        help="change a setting of a detector, such as spike.threshold_sigma=12; may be given again",
    )


def judge_of(arguments: argparse.Namespace) -> Judge | None:
    """Return the judge that the options ask for; None: the built-in one.

    Raises:
        ConfigError: A detector or a setting is not known.
    """
    if not arguments.detectors and not arguments.threshold:
        return None
    return make_judge(arguments.detectors, dict(arguments.threshold))


def _threshold(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r}: expected DETECTOR.SETTING=VALUE, such as spike.threshold_sigma=12"
        ) from None
