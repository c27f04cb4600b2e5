"""`trimtab serve DIR…`: a folder of runs in the browser, as it is now."""

import argparse
import ipaddress
import sys
from pathlib import Path

from trimtab.cli.output import tell
from trimtab.errors import ConfigError, MissingExtraError, ReadError

__all__ = ["add", "run"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_TOKEN_CHARS = 16


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="show a folder of runs in the browser, live",
        description="Shows the runs below some directories in the browser: a list with state,"
        " verdict and worst incident, a page for each run, and any of them in one picture. It"
        " reads, and changes nothing. Only this machine can open it, unless --host and --token"
        " say otherwise; the token is not encrypted on its way: outside of a trusted network put"
        " an SSH tunnel before it.",
    )
    parser.add_argument(
        "paths",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="run directories, logs, or directories of them",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1"
    )
    parser.add_argument("--port", type=int, default=8470, help="default: 8470; 0: one that is free")
    token = parser.add_mutually_exclusive_group()
    token.add_argument(
        "--token",
        default="",
        help=f"what a browser must give once, as /?token=…, at least {MIN_TOKEN_CHARS} letters;"
        " needed with any --host but this machine's own",
    )
    token.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="the same from a file: other users of this machine can read a command line",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    for path in arguments.paths:
        if not path.exists():
            raise ReadError(f"{path}: not there; give a directory of runs, or a log")
    if not 0 <= arguments.port <= 65_535:
        raise ConfigError(f"--port {arguments.port}: expected 0 to 65535")
    token = _token(arguments)
    local = _is_local(arguments.host)
    if not local and not token:
        raise ConfigError(
            f"--host {arguments.host}: others can reach this address; give --token or --token-file"
        )
    try:
        from trimtab.serve.listen import serve_forever
    except ImportError as error:
        raise MissingExtraError("`trimtab serve`", "serve") from error

    def ready(address: str) -> None:
        tell(f"{address}   (Ctrl-C ends it)" + ("" if not token else "   open it with ?token=…"))
        sys.stdout.flush()

    serve_forever(
        arguments.paths,
        host=arguments.host,
        port=arguments.port,
        token=token,
        hosts=(*_LOOPBACK, arguments.host.lower()) if local else (),
        ready=ready,
    )
    return 0


def _token(arguments: argparse.Namespace) -> str:
    token: str = arguments.token
    if arguments.token_file is not None:
        try:
            token = arguments.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ReadError(f"{arguments.token_file}: cannot be read ({error})") from error
    given = bool(arguments.token) or arguments.token_file is not None
    if given and len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"--token: {len(token)} characters can be guessed; give at least {MIN_TOKEN_CHARS}"
        )
    return token


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
