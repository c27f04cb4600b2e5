"""A list of command-line words as a tree of options."""

import re
from collections.abc import Sequence

from trimtab.configs.text_sources import put

__all__ = ["argument_tree", "count_options", "launcher_tree", "spelled_options"]

OPTION = re.compile(r"--?([A-Za-z][\w.@/-]*)(?:=(.*))?", re.DOTALL)
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
REDIRECT = re.compile(r"\d?>{1,2}(&?\S*)|&>\S*|<\S*|&")
MORE = re.compile(
    r"\"?\$\{?([@*]|\w*(ARGS?|OPTS|OPTIONS|FLAGS|PARAMS|EXTRA\w*)(\[[@*]\])?)\}?\"?", re.IGNORECASE
)
"""Arguments that the caller may add: no value of the option before them."""
LAUNCHER = {
    "nnodes",
    "nproc_per_node",
    "nproc-per-node",
    "num_nodes",
    "num_gpus",
    "num-nodes",
    "num_processes",
    "num_machines",
    "nodes",
    "gpus-per-node",
    "gpus",
    "gres",
    "N",
}


def count_options(words: Sequence[str]) -> int:
    """How many options and `name=value` overrides a command has."""
    # Short options alone are weak evidence: `ls -l -a` has some too, so four count as one.
    short = sum(bool(re.fullmatch(r"-[a-zA-Z]{1,2}", word)) for word in words)
    return (short if short >= 4 else 0) // 4 + sum(
        bool(OPTION.fullmatch(word) and word.startswith("--")) or bool(OVERRIDE.fullmatch(word))
        for word in words
    )


def argument_tree(words: Sequence[str]) -> dict[str, object]:
    """Return options as a tree: dots nest, several values make a list, no value makes True.

    A value that still holds `$` is left out of its list but the option stays, so that it reads as
    unresolved.
    """
    tree: dict[str, object] = {}
    key: tuple[str, ...] = ()
    values: list[str] = []

    short = not any(word.startswith("--") for word in words)

    def close() -> None:
        if key:
            put(tree, key, True if not values else values[0] if len(values) == 1 else list(values))

    skip = False
    for word in words:
        if skip or word in {">", ">>", "<", "2>", "&>"}:
            skip = not skip
            continue
        if REDIRECT.fullmatch(word) or MORE.fullmatch(word):
            continue
        if key == ("config_overrides",) and "=" in word:  # transformers: n_embd=10,n_head=2
            for pair in word.split(","):
                put(tree, path_of(pair.partition("=")[0].strip()), pair.partition("=")[2].strip())
            continue
        # `--weight -1`: a negative number is a value, not an option.
        negative = re.fullmatch(r"-[\d.][\d.eE+-]*", word)
        option = None if negative else OPTION.fullmatch(word)
        override = None if option else OVERRIDE.fullmatch(word)
        if option and (word.startswith("--") or len(option[1]) > 1 or short):
            close()
            key, values = path_of(option[1]), []
            if option[2] is not None:
                put(tree, key, option[2].strip("\"'"))
                key = ()
        elif override and not re.search(r"[/:]", override[1]):
            close()
            put(tree, path_of(override[1]), listed(override[2]))
            key, values = (), []
        elif key:
            values.append(word)
    close()
    return tree


def spelled_options(words: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Return the path of every option with the option as it is typed.

    `("adam_beta2",)` is `--adam-beta2`.
    """
    return {
        path_of(found[1]): word.partition("=")[0]
        for word in words
        if (found := OPTION.fullmatch(word)) and not re.fullmatch(r"-[\d.][\d.eE+-]*", word)
    }


def launcher_tree(words: Sequence[str]) -> dict[str, object]:
    """Return the options that determine how many processes are started."""
    found: dict[str, object] = {}
    for index, word in enumerate(words):
        if not (option := OPTION.fullmatch(word)) or option[1] not in LAUNCHER:
            continue
        value = (
            option[2]
            if option[2] is not None
            else words[index + 1]
            if index + 1 < len(words)
            else ""
        )
        if option[1] == "gres":
            value = value.rpartition(":")[2] if value.startswith("gpu") else ""
        if re.fullmatch(r"\d+", value):
            found[{"N": "nodes", "n": "ntasks"}.get(option[1], option[1])] = int(value)
    return found


def path_of(name: str) -> tuple[str, ...]:
    """Return the path of an option: dots nest, dashes are underscores."""
    return tuple(part.replace("-", "_") for part in re.split(r"[./]", name) if part) or (name,)


def listed(text: str) -> object:
    """Return a list for `[a,b]`, else the text."""
    text = text.strip("\"'")
    if text.startswith("[") and text.endswith("]") and "[" not in text[1:]:
        return [part.strip() for part in text[1:-1].split(",")]
    return text
