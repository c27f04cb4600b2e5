"""From a path to settings: read the text, recognize syntax and framework, convert the units."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from trimtab.configs.architecture import other_architecture
from trimtab.configs.compose import composed
from trimtab.configs.deepspeed import INNER, TRAINERS, mismatches, own_scaler, with_config
from trimtab.configs.derivation import Derivation
from trimtab.configs.derive import settings_of
from trimtab.configs.document import Document, Leaf, squash
from trimtab.configs.frameworks import Framework, detect
from trimtab.configs.frameworks import frameworks as known_frameworks
from trimtab.configs.multi_file import joined
from trimtab.configs.names import fact_table
from trimtab.configs.python_source import FUNCTION_NOTE
from trimtab.configs.recognize import (
    KeyCandidate,
    accepted,
    left_open,
    named,
    recognise,
    switched_off,
)
from trimtab.configs.segments import segment_facts
from trimtab.configs.settings import Doubt, Setting, Settings
from trimtab.configs.sources import SUFFIXES, documents
from trimtab.configs.typos import misspelt
from trimtab.configs.unreadable import conflicts, doubtful, exponents, in_doubt
from trimtab.configs.values import NO, YES
from trimtab.errors import ReadError
from trimtab.readers.base import CUT_STREAM, open_bytes

__all__ = ["read_config"]

REFERENCES = {
    "configname",
    "modelnameorpath",
    "config",
    "modelconfig",
    "modelconfigpath",
    "basemodelconfig",
    "deepspeed",
    "deepspeedconfig",
}
"""Keys that name another config, such as `config = AutoConfig.from_pretrained("./config.json")`."""
CONFIG_FILE = re.compile(r"[\w./-]+\.(json|ya?ml)")

MAX_BYTES = 8_000_000
MIN_IN_DIRECTORY = 3
"""Settings below which a file of no known framework, met in a directory, is not taken for a config.
"""
TRAINING = (
    "lr",
    "train_steps",
    "weight_decay",
    "betas",
    "beta2",
    "batch_global",
    "micro_batch",
    "warmup_steps",
    "precision",
    "bf16",
)


def read_config(path: str | Path, frameworks: Sequence[Framework] | None = None) -> list[Settings]:
    """Read one config file, or every config of a directory, into settings by canonical name.

    It reads command lines, sbatch and shell scripts, YAML, JSON, TOML, INI and gin files, Python
    config files, and arguments or settings stored as JSON (`{"args": […]}`, `{"config": {…}}`). The
    framework is recognized by its keys; any other config is read by the common names of settings
    alone, as framework "generic".

    Args:
        path: A file or a directory. In a directory, files without a config's ending, and files that
            cannot be read, are passed over; a file named by itself must be readable.
        frameworks: Whose own keys and defaults are known; None for all, () reads everything by
            common names.

    Returns:
        One record for each config: mostly one, several for YAML with several documents and for
        Python with several functions that return a config. `path` is as given.

    Raises:
        ReadError: The file is missing, too large, not valid in its syntax (with the line), or holds
            no setting.

    Non-finite: NaN and Inf in a file are kept as values, for a rule to speak of.
    Cost: O(size of the file), at most 8 MB of it and 100 000 values after aliases.
    """
    path = Path(path)
    frameworks = known_frameworks() if frameworks is None else frameworks
    if path.is_dir():
        return read_directory(path, frameworks)
    found = [
        settings
        for document in load(path)
        if (settings := understood(str(path), with_files(document, path), frameworks)).values
        or any(doubt.kind == "unreadable" for doubt in settings.doubts)
    ]
    if not found:
        raise ReadError(
            f"{path}: no setting of a training run was found in it; "
            "give the file that holds the learning rate, the batch or the model's shape"
        )
    return richest(found)


def with_files(document: Document, path: Path) -> Document:
    """Return a document with the files that belong to it and lie beside it."""
    return with_config(composed(document, path), path)


def read_directory(path: Path, frameworks: Sequence[Framework]) -> list[Settings]:
    """Read the files of a directory, in order of their names; raise where none is a config."""
    found: list[Settings] = []
    failed: list[str] = []
    for file in sorted(path.rglob("*")):
        if (
            file.is_file()
            and file.suffix.lower() in SUFFIXES
            and not any(p.startswith(".") for p in file.relative_to(path).parts)
        ):
            try:
                found.extend(s for s in read_config(file, frameworks) if is_config(s))
            except ReadError as error:
                failed.append(str(error))
    if not found:
        why = f" ({failed[0]})" if failed else ""
        raise ReadError(f"{path}: no training config among its files{why}; name the file itself")
    taken = {part for settings in found for part in settings.parts}
    return joined([settings for settings in found if settings.path not in taken])


def is_config(settings: Settings) -> bool:
    """Whether a file found in a directory is a config.

    It is where its framework is known, or where it states at least `MIN_IN_DIRECTORY` settings.
    """
    return settings.framework != "generic" or len(settings.values) >= MIN_IN_DIRECTORY


def load(path: Path, *, stored_config: bool = True) -> list[Document]:
    """Return the documents of a file.

    Args:
        path: The file; at most `MAX_BYTES` of it.
        stored_config: As for `documents`.

    Raises:
        ReadError: It is missing, too large, or not valid.
    """
    try:
        size = path.stat().st_size
        # The size is checked before reading, and again after: a compressed file grows.
        if size > MAX_BYTES:
            raise ReadError(
                f"{path}: {size} bytes is more than a config has (at most {MAX_BYTES}); is it the"
                " data or a log?"
            )
        with open_bytes(path) as stream:  # no pipe, no device
            raw = stream.read(MAX_BYTES + 1)
    except CUT_STREAM as error:
        why = getattr(error, "strerror", None) or error
        raise ReadError(f"{path}: cannot be read ({why}); check the path") from error
    if len(raw) > MAX_BYTES:
        raise ReadError(f"{path}: more than a config has (at most {MAX_BYTES} bytes); is it a log?")
    text = raw.decode("utf-8-sig", errors="replace")
    if "\0" in text:
        raise ReadError(f"{path}: is binary, not a config; give the text file it was made from")
    try:
        return list(documents(path.name, text, stored_config=stored_config))
    except ValueError as error:
        raise ReadError(
            f"{path}: {error}; correct the file, or give the command line instead"
        ) from error


def understood(path: str, document: Document, frameworks: Sequence[Framework]) -> Settings:
    """Return the settings of one document."""
    leaves = document.leaves()
    own = runner(document, leaves, frameworks)
    framework = own or detect(document, leaves, frameworks)
    note = list(document.note)
    # The order matters: facts, then the loss scale that DeepSpeed overrides, then doubts. A value
    # in doubt is removed before anything is derived from it, and gets no default either.
    stated = stated_facts(document, leaves, framework, fills_in=own is not None)
    if (scaled := own_scaler(document.tree, stated)) is not None:
        if "loss_scale" in stated and scaled.get("loss_scale") != stated["loss_scale"]:
            note.append("the loss is scaled as DeepSpeed's config says, not by --loss-scale")
        stated = scaled
    no_clip = switched_off(leaves, "clip")
    # `max_norm: null` turns clipping off, unless the framework then takes a default of its own.
    if no_clip is not None and not (framework is not None and framework.defaults.get("clip")):
        stated.setdefault("clip", Setting(0, "stated", no_clip.key, no_clip.line))
    name = framework.name if framework else "generic"
    doubts = (
        *doubtful(document, leaves, framework, stated),
        *conflicts(framework, stated),
        *exponents(document, leaves),
        *misspelt(document, leaves, framework, stated),
        *mismatches(document.tree, stated, name),
    )
    refused = in_doubt(doubts)
    stated = {name: setting for name, setting in stated.items() if name not in refused}
    facts = Derivation(stated, note=note)
    if (other := other_architecture(leaves)) is not None:
        facts.values["architecture"] = other
    if framework is not None:
        facts.batch_unit, facts.ffn_rule = framework.batch_unit, framework.ffn_rule
        facts.defaults = defaults_for(framework, stated, leaves)
    values = {name: found for name, found in settings_of(facts).items() if name not in refused}
    if name.startswith("megatron") and is_script(path, document) and not has_key(leaves, "save"):
        values.setdefault("saves", Setting(NO, "default", "--save"))
    files = tuple(named_files(leaves))
    doubts += tuple(unread_files(document, files))
    return Settings(path, name, values, tuple(facts.note), doubts, document.parts, files)


def stated_facts(
    document: Document, leaves: Sequence[Leaf], framework: Framework | None, *, fills_in: bool
) -> dict[str, Setting]:
    """Return the facts that a document states: a framework's own keys first, then common names.

    Args:
        document: The document.
        leaves: Its values.
        framework: Whose keys are known.
        fills_in: The Trainer's own arguments win over its DeepSpeed config, which fills in.
    """
    stated = {} if framework is None else own_keys(framework, leaves)
    rest = leaves if framework is None else list(without(framework, leaves))
    shares = [rest]
    if fills_in:
        shares = [
            [leaf for leaf in rest if (leaf.path[0] == INNER) is inner] for inner in (NO, YES)
        ]
    for share in shares:
        for name, found in recognise(share).items():
            leaf = knob(found, leaves) if document.syntax == "python" else found.leaf
            stated.setdefault(name, Setting(found.value, "stated", leaf.key, leaf.line))
    stated.update(segment_facts(document.tree))
    return stated


def unread_files(document: Document, files: Iterable[str]) -> Iterable[Doubt]:
    """Give the files that a document names and that were not read with it."""
    for file in dict.fromkeys((*document.missing, *files)):
        if not any(part.endswith(PurePath(file).name) for part in document.parts):
            yield Doubt("file", "", file, None, "the file itself, given as well", "not-read")


def named_files(leaves: Iterable[Leaf]) -> Iterable[str]:
    """Give the configs that keys such as `config_name` and `model_name_or_path` name."""
    for leaf in leaves:
        if squash(leaf.path[-1]) not in REFERENCES or not isinstance(leaf.value, str):
            continue
        if CONFIG_FILE.fullmatch(leaf.value):
            yield leaf.value


def is_script(path: str, document: Document) -> bool:
    """Whether this is a whole command line, and not arguments that somebody noted down."""
    return document.syntax == "args" and not path.lower().endswith(".json")


def has_key(leaves: Iterable[Leaf], key: str) -> bool:
    """Whether a key is there, with whatever value."""
    return any(squash(leaf.path[-1]) == key for leaf in leaves)


def runner(
    document: Document, leaves: Sequence[Leaf], frameworks: Sequence[Framework]
) -> Framework | None:
    """Return the framework of a script whose DeepSpeed config is read by the Trainer, or None."""
    script = [leaf for leaf in leaves if leaf.path[0] != INNER]
    if len(script) == len(leaves):
        return None
    found = detect(document, script, frameworks)
    return found if found is not None and found.name in TRAINERS else None


def knob(found: KeyCandidate, leaves: Iterable[Leaf]) -> Leaf:
    """Return the module-level name that a call takes its value from, or the call's own key.

    `AdamW(lr=LR)` is reported as `LR`.
    """
    if len(found.leaf.path) == 1:
        return found.leaf
    for leaf in leaves:
        same = (
            len(leaf.path) == 1 and leaf.value == found.value and not isinstance(leaf.value, bool)
        )
        if same and any(name == found.fact for name, _ in named(squash(leaf.path[0]), "")):
            return leaf
    return found.leaf


def defaults_for(
    framework: Framework, stated: Mapping[str, Setting], leaves: Iterable[Leaf]
) -> dict[str, object]:
    """Return the framework's defaults that apply.

    No default applies to a model description, nor to a key whose value the file leaves open.
    """
    if not any(name in stated for name in TRAINING):
        return {}
    unset = left_open(leaves)
    warmup_named = any(name.startswith("warmup") for name in (*stated, *unset))
    return {
        name: value
        for name, value in framework.defaults.items()
        if name not in unset and not (name == "warmup_steps" and warmup_named)
    }


def own_keys(framework: Framework, leaves: Iterable[Leaf]) -> dict[str, Setting]:
    """Return the facts that a framework's own keys state; a longer path wins over the key alone."""
    found: dict[str, tuple[int, Setting]] = {}
    for leaf in leaves:
        parts = [squash(part) for part in leaf.path]
        for start in range(len(parts)):
            fact = framework.keys.get(".".join(parts[start:]))
            if fact is None or (start and start < len(parts) - 1):
                continue
            if (
                fact in fact_table()
                and (value := accepted(fact_table()[fact], leaf.value)) is not None
            ):
                weight = (len(parts) if start == 0 else 0) * 10 - len(parts)
                if fact not in found or weight > found[fact][0]:
                    found[fact] = (weight, Setting(value, "stated", leaf.key, leaf.line))
            break
    return {name: setting for name, (_, setting) in found.items()}


def without(framework: Framework, leaves: Iterable[Leaf]) -> Iterable[Leaf]:
    """Yield the values that the framework's table neither names nor ignores."""
    ignored = set(framework.ignore)
    for leaf in leaves:
        parts = [squash(part) for part in leaf.path]
        if ignored & set(parts) or ".".join(parts) in ignored:
            continue
        if ".".join(parts) in framework.keys or parts[-1] in framework.keys:
            continue
        yield leaf


def richest(found: list[Settings]) -> list[Settings]:
    """Leave out records with few settings beside one with many.

    Where the module level of a Python file states as much as its best function, the functions only
    use what it sets and are left out.
    """
    most = max(len(settings.values) for settings in found)
    if len(found[0].values) >= 0.8 * most:
        own = [
            settings
            for settings in found
            if not any(note.startswith(FUNCTION_NOTE) for note in settings.note)
        ]
        found = own or found
    return [settings for settings in found if len(settings.values) >= max(3, most / 3)] or found[:1]
