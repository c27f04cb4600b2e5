"""Python config files, parsed and never imported or run.

Literals, constant arithmetic and calls are read, calls as records of their keywords.
"""

import ast
import math
import re
from collections.abc import Iterator

from trimtab.configs.document import Document, PathKey
from trimtab.configs.text_sources import put
from trimtab.configs.values import YES, calculate

__all__ = ["FUNCTION_NOTE", "read_python"]

UNKNOWN = object()
RECORD = object()
"""Stands for a call whose keyword arguments are the value."""
FUNCTION_NOTE = "settings of the function"
MAX_DEPTH = 40
MAX_CHARS = 2_000_000


def read_python(text: str) -> Iterator[Document]:
    """Give the configs of a Python file: its own level, and each function that returns a record.

    Assignments, class fields with defaults, keyword arguments of calls, attributes set one by one,
    and the defaults of `add_argument` are read. What is computed otherwise is left out.

    Raises:
        ValueError: It is no Python, with the line.
    """
    try:
        if len(text) > MAX_CHARS:  # a tree of syntax takes 200 times the memory of its text
            raise ValueError(f"more than {MAX_CHARS:,} characters of Python, as no config has")
        yield from read_module(ast.parse(text))
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: not valid Python ({error.msg})") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("Python nested too deeply") from error


def read_module(module: ast.Module) -> Iterator[Document]:
    """Give what the module's own level sets, then each function that sets something."""
    reader = PythonReader()
    reader.body(module.body, ())
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        if function.name in ENTRIES:
            reader.parameters(function)
    for node in ast.walk(module):
        if halves_weights(node):
            reader.store(("weights_in_half",), YES, node)
    if reader.tree:
        yield Document(reader.tree, "python", reader.lines)
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        inner = PythonReader(dict(reader.names))
        inner.body(function.body, ())
        if inner.tree:
            yield Document(inner.tree, "python", inner.lines, (f"{FUNCTION_NOTE} {function.name}",))


def halves_weights(node: ast.AST) -> bool:
    """Whether this is `model.half()`, or `.half()` on a model that is built there."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr != "half" or node.args:
        return False
    inner: ast.expr = node.func.value
    while isinstance(inner, ast.Call):  # GPT(...).cuda().half()
        if isinstance(inner.func, ast.Name):
            return inner.func.id[:1].isupper()
        inner = inner.func.value if isinstance(inner.func, ast.Attribute) else inner.func
    return isinstance(inner, ast.Name) and inner.id.lower() in ("model", "net", "network", "gpt")


class PythonReader:
    """Collects what a body of statements assigns."""

    def __init__(self, names: dict[str, object] | None = None) -> None:
        self.names: dict[str, object] = names or {}
        self.numbers = {n: v for n, v in self.names.items() if isinstance(v, int | float)}
        """Those of the names that arithmetic can use."""
        self.tree: dict[str, object] = {}
        self.lines: dict[PathKey, int] = {}
        self.sure = True

    def body(self, statements: list[ast.stmt], prefix: PathKey) -> None:
        """Read statements in order.

        A value set in a branch counts only where no line outside of branches sets it.
        """
        for statement in statements:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self.assign(statement.targets[0], statement.value, prefix)
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self.assign(statement.target, statement.value, prefix)
            elif isinstance(statement, ast.ClassDef):
                self.body(statement.body, (*prefix, statement.name))
            elif isinstance(statement, ast.With):
                self.body(statement.body, prefix)
            elif isinstance(statement, ast.If):
                self.branch(statement, prefix)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                self.store((*prefix, "returned"), self.value(statement.value), statement)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.call(statement.value, prefix)
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.Return):
                for node in ast.walk(statement):
                    if isinstance(node, ast.Call):
                        self.option(node, prefix)

    def parameters(self, function: ast.FunctionDef) -> None:
        """Read the defaults of an entry point's parameters that the module does not set itself."""
        named = [*function.args.posonlyargs, *function.args.args]
        defaults = list(
            zip(
                named[len(named) - len(function.args.defaults) :],
                function.args.defaults,
                strict=True,
            )
        )
        defaults += [
            (a, d)
            for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if d is not None
        ]
        for argument, default in defaults:
            if (argument.arg,) not in self.lines:
                self.store((argument.arg,), self.value(default), default)

    def branch(self, statement: ast.If, prefix: PathKey) -> None:
        """Read both branches of an `if`, without overwriting what is known."""
        outer, self.sure = self.sure, False
        self.body(statement.body, prefix)
        self.body(statement.orelse, prefix)
        self.sure = outer

    def assign(self, target: ast.expr, value: ast.expr, prefix: PathKey) -> None:
        """Take one assignment to a name or an attribute."""
        path = dotted(target)
        if path is None:
            return
        found = self.value(value)
        if found is UNKNOWN:
            return
        # Inside a branch a name keeps the value that it has outside of it.
        if len(path) == 1 and (self.sure or path[0] not in self.names):
            self.names[path[0]] = found
            self.numbers.pop(path[0], None)
            if isinstance(found, int | float):
                self.numbers[path[0]] = found
        self.store((*prefix, *path), found, value)

    def call(self, node: ast.Call, prefix: PathKey) -> None:
        """Take `add_argument("--lr", default=…)`, `cfg.update(…)` and other calls with keywords."""
        if self.option(node, prefix):
            return
        found = self.value(node)
        if isinstance(found, dict) and found:
            owner = dotted(node.func) or ("call",)
            self.store((*prefix, owner[0] if owner[-1] == "update" else owner[-1]), found, node)

    def option(self, node: ast.Call, prefix: PathKey) -> bool:
        """Take a call that names an option; return whether it is one.

        Examples are `add_argument("--lr", default=…)` and `hyperparam("--lr", 3e-4)`.
        """
        first = node.args[0] if node.args else None
        if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            return False
        defines = isinstance(node.func, ast.Attribute) and node.func.attr.startswith(
            ("add_argument", "DEFINE_")
        )
        if not first.value.startswith("--") and not defines:
            return False
        names = [
            a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
        ]
        key = max((name for name in names if name.startswith("-")), key=len, default=first.value)
        value = next((k.value for k in node.keywords if k.arg == "default"), None)
        if value is None and not defines:
            value = node.args[1] if len(node.args) > 1 else ast.Constant(value=True)
        if value is not None:
            self.store((*prefix, key.lstrip("-").replace("-", "_")), self.value(value), node)
        return True

    def store(self, path: PathKey, value: object, node: ast.AST) -> None:
        """Put a value into the tree with its line."""
        if value is UNKNOWN:
            return
        if isinstance(value, dict):
            for key, below in value.items():
                self.store((*path, str(key)), below, node)
            return
        if not self.sure and path in self.lines:
            return
        put(self.tree, path, value)
        self.lines[path] = getattr(node, "lineno", 0)

    def value(self, node: ast.expr, depth: int = 0) -> object:
        """Return the value of an expression, a dict for a record, or UNKNOWN."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return (
                node.value if isinstance(node.value, str | int | float | bool | None) else UNKNOWN
            )
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, depth + 1) for item in node.elts]
            return [item for item in items if item is not UNKNOWN]
        if isinstance(node, ast.Dict):
            pairs = (
                (key, self.value(value, depth + 1))
                for key, value in zip(node.keys, node.values, strict=True)
            )
            return {
                str(key.value): value
                for key, value in pairs
                if isinstance(key, ast.Constant) and value is not UNKNOWN
            }
        if isinstance(node, ast.Call):
            return self.record(node, depth)
        if isinstance(node, ast.Attribute | ast.Subscript):
            return self.looked_up(node, depth)
        if isinstance(node, ast.JoinedStr) and all(
            isinstance(part, ast.Constant) for part in node.values
        ):
            return "".join(
                str(part.value) for part in node.values if isinstance(part, ast.Constant)
            )
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            found = [
                value
                for part in node.values
                if (value := self.value(part, depth + 1)) is not UNKNOWN
            ]
            return found[-1] if found else UNKNOWN
        if isinstance(node, ast.IfExp):
            return self.value(node.body, depth + 1)
        return self.computed(node)

    def looked_up(self, node: ast.expr, depth: int = 0) -> object:
        """Return what `cfg.x` or `data["x"]` stands for, or UNKNOWN."""
        path = dotted(node)
        if path is None:
            return UNKNOWN
        found: object = self.names.get(path[0], self.tree.get(path[0]))
        for part in path[1:]:
            found = found.get(part) if isinstance(found, dict) and depth < MAX_DEPTH else None
        if found is None:
            return ".".join(path) if path[-1] in DTYPES else UNKNOWN
        return found

    def computed(self, node: ast.expr) -> object:
        """Return constant arithmetic, with the names that are known."""
        try:
            return calculate(node, self.numbers, self.looked_up)
        except (ValueError, TypeError, ArithmeticError):
            return UNKNOWN

    def record(self, node: ast.Call, depth: int) -> object:
        """Return a call as its keyword arguments, or as the plain value that it stands for."""
        name = (dotted(node.func) or ("",))[-1]
        plain = self.plain_call(node, name, depth)
        if plain is not RECORD:
            return plain
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            return self.chained(node, depth)
        found: dict[str, object] = {}
        for argument in [*node.args, *(k.value for k in node.keywords if k.arg is None)]:
            value = self.value(argument, depth + 1)
            if isinstance(value, dict):
                found.update(value)
        for keyword in node.keywords:
            value = self.value(keyword.value, depth + 1) if keyword.arg else UNKNOWN
            if value is not UNKNOWN:
                found[str(keyword.arg)] = value
        # `setdefault`: a keyword of the same name, which the call states, wins.
        if PRESET.search(name):
            found.setdefault("preset", name)
        if not found:
            return self.computed(node)
        if name[:1].isupper():
            found.setdefault("_type", name)
        return found

    def plain_call(self, node: ast.Call, name: str, depth: int) -> object:
        """Return the value that a call stands for, UNKNOWN, or RECORD.

        `field(default=…)` and `getenv` give their default, `int(…)` and the like their argument.
        """
        keywords = {k.arg: k.value for k in node.keywords if k.arg}
        if name == "field":
            inner = keywords.get("default")
            return UNKNOWN if inner is None else self.value(inner, depth + 1)
        if name in {"get", "getenv"}:
            return self.value(node.args[1], depth + 1) if len(node.args) == 2 else UNKNOWN
        if name in {"int", "float", "str", "bool", "round", "Field"} and node.args:
            given = self.value(node.args[0], depth + 1)
            if name in {"int", "round"} and isinstance(given, float) and math.isfinite(given):
                return int(given)
            return given
        if len(node.args) != 1 or keywords:
            return RECORD
        only = self.value(node.args[0], depth + 1)
        if name in LENGTHS and isinstance(only, int | float):
            return f"{only}{LENGTHS[name]}"
        return only if isinstance(only, str) and NAMED.search(name) else RECORD

    def chained(self, node: ast.Call, depth: int) -> object:
        """Return a call on the result of a call as one record.

        `Config(…).with_callback("saver", Saver(…))` is the record of Config with `saver` below it.
        """
        assert isinstance(node.func, ast.Attribute)
        base = self.value(node.func.value, depth + 1)
        if not isinstance(base, dict):
            return UNKNOWN
        named = [
            value
            for argument in node.args
            if (value := self.value(argument, depth + 1)) is not UNKNOWN
        ]
        if len(named) == 2 and isinstance(named[0], str):
            base = {**base, named[0]: named[1]}
        return base


ENTRIES = {"main", "train", "setup", "run", "pretrain", "finetune"}
"""Functions whose parameters are the settings of a run, as `fire` and `jsonargparse` expose them.
"""
LENGTHS = {"tokens": "tok", "steps": "ba", "epochs": "ep"}
"""Calls that give a length of training: `Duration.tokens(6.5e12)`."""
NAMED = re.compile(r"registry|from_name|from_pretrained|get_model|Path")
"""Calls whose only argument names what is meant."""
PRESET = re.compile(r"\d+(p\d+)?[bBmM]$")
"""Class methods that are named after a size: `TransformerConfig.olmo2_32B(…)`."""
DTYPES = {"bfloat16", "float16", "float32", "half", "float8_e4m3fn"}


def dotted(node: ast.expr) -> PathKey | None:
    """Return the parts of `a.b.c` or `a["b"]`, or None."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return None if above is None else (*above, node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        above = dotted(node.value)
        return None if above is None else (*above, str(node.slice.value))
    return None
