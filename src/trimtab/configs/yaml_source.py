"""Safe YAML: no objects are built, aliases and depth are bounded, unknown tags are plain values."""

from collections.abc import Iterator

import yaml

from trimtab.configs.document import MAX_DEPTH, MAX_LEAVES, Document, PathKey

__all__ = ["read_yaml"]

LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOO_DEEP = f"YAML nested more than {MAX_DEPTH} levels deep"


def read_yaml(text: str) -> Iterator[Document]:
    """Give every YAML document that holds a mapping.

    Anchors, merge keys, and tags such as `!include` are read; a tag never runs anything.

    Raises:
        ValueError: The text is no YAML (with the line), or grows too large by aliases.
    """
    try:
        # The composer recurses in C, where too deep a nesting may end the process.
        refuse_size(text)
        for root in filter(None, yaml.compose_all(text, Loader=LOADER)):
            builder = Builder()
            tree = builder.build(root, ())
            if isinstance(tree, dict):
                yield Document(tree, "yaml", builder.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        reason = " ".join(filter(None, (error.context, error.problem)))
        if "nesting depth" in reason:  # libyaml from 0.2.6 on has a bound of its own, seen first
            raise ValueError(f"{where}{_TOO_DEEP}") from error
        raise ValueError(f"{where}not valid YAML ({reason})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML ({str(error).splitlines()[0]})") from error
    except RecursionError as error:
        raise ValueError("YAML nested too deeply") from error


def refuse_size(text: str) -> None:
    """Raise where nodes are nested too deeply or too many, before the composer makes them.

    A node takes a kilobyte of memory.
    """
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=LOADER)):
        if number > 4 * MAX_LEAVES:  # keys, values and the marks of what holds them
            raise ValueError(f"more than {MAX_LEAVES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise ValueError(f"line {line}: {_TOO_DEEP}")


class Builder:
    """Turns one YAML node tree into plain values, and counts what it builds."""

    def __init__(self) -> None:
        self.lines: dict[PathKey, int] = {}
        self.built = 0
        self.scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, path: PathKey) -> object:
        """Return the plain value of a node."""
        # Counted after aliases are expanded: a few lines of nested aliases make billions of values.
        self.built += 1
        if self.built > MAX_LEAVES or len(path) > MAX_DEPTH:
            raise ValueError(
                f"more than {MAX_LEAVES} values or {MAX_DEPTH} levels once aliases are expanded"
            )
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, str(i))) for i, item in enumerate(node.value)]
        self.lines.setdefault(path, node.start_mark.line + 1)
        # `!!python/…` tags build objects; their text is all that is taken.
        if node.tag.startswith("tag:yaml.org,2002:") and "python" not in node.tag:
            if node.tag.endswith((":timestamp", ":binary")):
                return str(node.value)
            try:
                return self.scalars.construct_object(node, deep=True)
            except (ValueError, yaml.YAMLError):
                return str(node.value)
        return str(node.value)

    def mapping(self, node: yaml.MappingNode, path: PathKey) -> dict[str, object]:
        """Return a mapping; what a merge key brings in gives way to what is written."""
        merged: dict[str, object] = {}
        written: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                sources = (
                    value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                )
                for source in sources:
                    found = self.build(source, path)
                    if isinstance(found, dict):
                        merged = {**found, **merged}
                continue
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            here = (*path, key)
            self.lines[here] = key_node.start_mark.line + 1
            written[key] = self.build(value_node, here)
        return {**merged, **written}
