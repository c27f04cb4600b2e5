"""Measure the structure of this codebase and print it beside seven well-known codebases.

    python tools/house.py                    the table
    python tools/house.py --list circles     the places behind one figure, as file:line
    python tools/house.py --check            the gates only: exit 1 where one of them is not 0
    python tools/house.py --json             every figure, for a program
    python tools/house.py --root DIR --package NAME    the same for another codebase

How the less obvious figures are counted:

Import circles. Every import statement counts: at the top, inside functions, under TYPE_CHECKING,
absolute or relative. `import p.a` and `from p.a import name` are an edge to `p.a`. An import
`from p import a` is an edge to the module `p.a` if there is one and `p/__init__.py` gives that
name to nothing else; otherwise the name is taken from `p` itself, and the edge goes to `p`. That
`import p.a` runs `p/__init__.py` on the way is no edge: a package that re-exports its own modules
is a circle only where one of them takes a name from the package. A circle is a strongly connected
component of two or more modules. Circles of packages are counted among siblings: an import
between two modules is an edge between the two children of their nearest common package, and a
circle counts if one of its members is a package with modules inside. Imports by string
(`import_module`) are no statements; they have a row of their own.

Private names across packages. A package is the first folder below the root package (`guard`,
`cli`), or a module that lies directly in it. A use is an import of a name or module that begins
with one underscore, an attribute `x._name`, or `getattr(x, "_name")` and its like. Where the class
of `x` is known (`self`, an annotation, a constructor call, an attribute annotated in its class),
the package of the class that defines the name decides. Otherwise a use counts if the name is not
a member of any class of the using package, but of a class elsewhere in our source: names of
foreign libraries do not count. The stricter figure asks the same of folders two levels deep.

Comments. Lines with a comment, directives (`noqa`, `type: ignore`, `fmt:`) and the header at the
top of a file left out, per 100 lines that are neither blank, nor comment, nor docstring.

`Any`. Every time the name is imported, used, or written in an annotation in quotes.

Branching. 1 + branches, loops, handlers, conditional expressions, boolean operands, asserts;
functions inside are counted in.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import statistics
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 100
SIDE_FOLDERS = ("benchmarks", "examples", "tests", "tools")

# In the order of ANCHOR_NAMES. "" is not known: nanochat has no wheel to measure.
ANCHOR_NAMES = ("torchtitan", "OLMo-core", "nanochat", "optax", "river", "sqlite-utils", "httpx")
ANCHOR_WHEELS = {  # measured with this file, tests left out
    "circles": ("12 (35)", "9 (92)", "", "1 (54)", "17 (173)", "0", "2 (17)"),
    "package_circles": ("2 (11)", "4 (24)", "", "1 (11)", "6 (51)", "0", "1 (5)"),
    "string_imports": ("0", "0", "", "0", "0", "0", "0"),
    "private": ("24", "38", "", "19", "167", "1", "0"),
    "private_rooms": ("43", "245", "", "19", "227", "1", "0"),
    "duplicates": ("3", "3", "", "0", "5", "0", "0"),
    "chain": ("7", "5", "", "2", "7", "2", "5"),
    "methods": ("28", "105", "", "6", "48", "67", "44"),
    "any": ("5.2", "5.9", "", "9.7", "5.1", "9.2", "8.0"),
    "layout": ("177", "1,078", "", "14", "513", "82", "3"),
    "comments": ("7.8", "6.2", "", "7.6", "7.0", "4.2", "5.9"),
}
ANCHOR_SNAPSHOTS = {  # measured on the repositories
    "files": ("175", "181", "28", "77", "430", "10", "23"),
    "lines": ("55,936", "57,071", "6,615", "24,446", "66,495", "11,258", "8,850"),
    "file_lines": (
        "240/910/1,961",
        "189/1,096/2,827",
        "241/556/605",
        "183/995/2,795",
        "101/455/1,023",
        "185/5,548/5,548",
        "249/1,278/2,020",
    ),
    "function_lines": (
        "17/81/353",
        "10/64/299",
        "10/66/147",
        "18/118/736",
        "6/41/196",
        "13/96/482",
        "9/47/133",
    ),
    "branching": (
        "2/12/68",
        "2/12/48",
        "2/11/22",
        "1/6/17",
        "1/8/41",
        "3/21/138",
        "2/8/46",
    ),
    "docstring_share": ("45 %", "36 %", "44 %", "54 %", "30 %", "76 %", "48 %"),
}
ANCHORS: Mapping[str, tuple[str, ...]] = ANCHOR_WHEELS | ANCHOR_SNAPSHOTS
SOURCES = """\
Figures of the anchors. From "files in the wheel" on: the repositories at torchtitan b5bcd76 (its
core), OLMo-core fa6c501, nanochat 92d63d4, optax 2edbcbe, sqlite-utils 56dd097, httpx ae1b9f6, and
the wheel of river 0.26.1. Above: this command on the wheels of torchtitan 0.3.0 (its core),
ai2-olmo-core 3.0.0, optax 0.2.6, river 0.26.1, sqlite-utils 4.2.1 and httpx 0.28.1."""

STRING_OR_COMMENT = re.compile(
    r"""(?s:"{3}(?:[^"\\]|\\.|"(?!""))*"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3})"""
    r"""|"(?:[^"\\\n]|\\[\s\S])*"|'(?:[^'\\\n]|\\[\s\S])*'|#[^\n]*"""
)
DIRECTIVE = re.compile(r"\s*(noqa|type:|fmt:|ruff:|mypy:|pyright:|pylint:|isort:|pragma|!|-\*-)")
FORMATTER_MARK = re.compile(r"#\s*fmt:\s*(skip|off)\b")
ANY = re.compile(r"\bAny\b")
PRIVATE_WORD = re.compile(r"\b_[A-Za-z0-9]\w*")
NAMED_TUPLE_API = {"_asdict", "_fields", "_field_defaults", "_make", "_replace"}
# Private names of torch that this code reads on values of unknown class: Tensor, GradScaler.
FOREIGN = {"_base", "_scale"}
LOOKUPS = {"getattr", "setattr", "hasattr", "delattr"}


def is_private(name: str) -> bool:
    """Tell whether a name begins with exactly one underscore and is more than that."""
    return name.startswith("_") and not name.startswith("__") and name != "_"


class Comment(NamedTuple):
    """One comment, and whether nothing else stands on its line."""

    row: int
    text: str
    alone: bool


@dataclass(frozen=True)
class Import:
    """One imported thing: `import module`, or `from module import name`."""

    line: int
    module: str
    name: str | None = None


@dataclass(frozen=True)
class Holder:
    """What is known of `x` in `x._name`, as written; names are resolved once all is read."""

    kind: Literal["self", "member", "value", "name", "unknown"]
    text: str = ""  # the class of self, the type of the value, or the dotted name itself
    attribute: str = ""  # for "member": self.<attribute>._name


@dataclass(frozen=True)
class Use:
    """A private name looked up on something."""

    line: int
    name: str
    holder: Holder


@dataclass(kw_only=True)
class Class:
    """A class statement."""

    module: str
    name: str  # with the classes around it: Outer.Inner
    line: int
    bases: list[str]
    top_level: bool
    methods: set[str] = field(default_factory=set)
    in_body: set[str] = field(default_factory=set)  # methods and class attributes
    on_self: set[str] = field(default_factory=set)  # assigned as self.name
    types: dict[str, str] = field(default_factory=dict)  # attribute -> its annotated type


@dataclass(kw_only=True)
class Function:
    """A function statement, nested ones and methods included."""

    name: str
    line: int
    lines: int
    public: bool
    documented: bool
    branching: int = 1


@dataclass(kw_only=True)
class Module:
    """What one file says, before names are resolved."""

    name: str
    path: str
    is_package: bool
    imports: list[Import] = field(default_factory=list)
    by_string: list[int] = field(default_factory=list)
    bindings: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    top_level: set[str] = field(default_factory=set)  # names defined (not imported) at the top
    classes: dict[str, Class] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    num_lines: int = 0
    code_lines: int = 0
    comments: int = 0
    any_lines: list[int] = field(default_factory=list)
    long_lines: list[int] = field(default_factory=list)
    formatter_marks: list[int] = field(default_factory=list)

    def folders(self, root: str) -> list[str]:
        """Return the packages around the module below the root, or its own name if none is."""
        inner = self.name.split(".")[1:] if self.name != root else []
        return inner if self.is_package else inner[:-1] or inner

    def part(self, root: str, depth: int) -> str:
        """Return the package that the module counts to, `depth` folders deep at most."""
        return ".".join(self.folders(root)[:depth])


class Scope:
    """The variables of a function whose class is known, and what its first argument is."""

    def __init__(self, function: Function, owner: Class | None, first: str | None) -> None:
        self.function = function
        self.owner = owner
        self.first = first
        self.types: dict[str, str] = {}


class Reader:
    """One pass over the syntax tree of a file."""

    def __init__(self, module: Module, tree: ast.Module, package: str) -> None:
        self.module = module
        self.package = package
        self.scopes: list[Scope] = []
        self.around: list[Class] = []  # class statements around the current node
        self.bare_strings: list[tuple[int, int]] = []
        self.handlers: dict[type[ast.AST], Callable[..., None]] = {
            ast.ClassDef: self.read_class,
            ast.FunctionDef: self.read_function,
            ast.AsyncFunctionDef: self.read_function,
            ast.Import: self.read_import,
            ast.ImportFrom: self.read_import_from,
            ast.Attribute: self.read_attribute,
            ast.Call: self.read_call,
            ast.Assign: self.read_assign,
            ast.AnnAssign: self.read_annotated,
            ast.arg: self.read_argument,
            ast.Expr: self.read_expression,
            ast.BoolOp: self.read_operands,
            ast.Name: self.read_name,
            ast.Constant: self.read_constant,
        }
        branches = (
            ast.If,
            ast.For,
            ast.AsyncFor,
            ast.While,
            ast.ExceptHandler,
            ast.IfExp,
            ast.Assert,
            ast.comprehension,
            ast.match_case,
        )
        self.handlers.update(dict.fromkeys(branches, self.read_branch))
        self.children(tree)

    def visit(self, node: ast.AST) -> None:
        """Hand a node to its handler, or go on to its children."""
        handler = self.handlers.get(type(node))
        if handler is None:
            self.children(node)
        else:
            handler(node)

    def children(self, node: ast.AST) -> None:
        """Visit what a node holds."""
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                self.visit(value)

    def read_name(self, node: ast.Name) -> None:
        """Count `Any`."""
        if node.id == "Any":
            self.module.any_lines.append(node.lineno)

    def read_constant(self, node: ast.Constant) -> None:
        """Stop here: a constant has no children."""

    def read_branch(self, node: ast.AST) -> None:
        """Count one more way through the function."""
        self.branch(1)
        self.children(node)

    def read_operands(self, node: ast.BoolOp) -> None:
        """Count each operand that may be reached or not."""
        self.branch(len(node.values) - 1)
        self.children(node)

    def branch(self, ways: int) -> None:
        """Add to every function around: a nested one is part of what its reader has to follow."""
        for scope in self.scopes:
            scope.function.branching += ways

    def read_expression(self, node: ast.Expr) -> None:
        """Note a bare string: documentation, not code."""
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self.bare_strings.append((node.lineno, node.end_lineno or node.lineno))
        else:
            self.children(node)

    def read_class(self, node: ast.ClassDef) -> None:
        """Note a class, then read its body."""
        outer = self.around[-1] if self.around else None
        found = Class(
            module=self.module.name,
            name=f"{outer.name}.{node.name}" if outer else node.name,
            line=node.lineno,
            bases=[name for base in node.bases if (name := dotted(base))],
            top_level=not self.scopes and outer is None,
        )
        if found.top_level:
            self.module.top_level.add(node.name)
        elif outer and not self.scopes:
            outer.in_body.add(node.name)
        self.module.classes.setdefault(found.name, found)
        for item in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(item)
        scopes, self.scopes = self.scopes, []  # a class body sees no variable of methods around it
        self.around.append(found)
        for item in node.body:
            self.visit(item)
        self.around.pop()
        self.scopes = scopes

    def read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Note a function or method, then read its body with the types of its arguments."""
        owner = self.around[-1] if self.around and not self.scopes else None
        if owner:
            owner.methods.add(node.name)
            owner.in_body.add(node.name)
        elif not self.scopes:
            self.module.top_level.add(node.name)
        around = [part for outer in self.around[-1:] for part in outer.name.split(".")]
        found = Function(
            name=f"{self.around[-1].name}.{node.name}" if owner else node.name,
            line=node.lineno,
            lines=(node.end_lineno or node.lineno) - node.lineno + 1,
            public=not self.scopes
            and not any(name.startswith("_") for name in [node.name, *around]),
            documented=ast.get_docstring(node, clean=False) is not None,
        )
        self.module.functions.append(found)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        decorators = {dotted(item) for item in node.decorator_list}
        is_bound = owner is not None and "staticmethod" not in decorators and bool(arguments)
        scope = Scope(found, owner, arguments[0].arg if is_bound else None)
        for argument in arguments:
            if argument.annotation is not None and (name := type_name(argument.annotation)):
                scope.types[argument.arg] = name
        if node.returns is not None:
            self.note_any_in_strings(node.returns)
        for item in node.decorator_list:
            self.visit(item)
        self.scopes.append(scope)
        self.visit(node.args)
        if node.returns is not None:
            self.visit(node.returns)
        for statement in node.body:
            self.visit(statement)
        self.scopes.pop()

    def read_argument(self, node: ast.arg) -> None:
        """Read the annotation of an argument."""
        if node.annotation is not None:
            self.note_any_in_strings(node.annotation)
            self.visit(node.annotation)

    def note_any_in_strings(self, annotation: ast.expr) -> None:
        """Count `Any` in the quoted parts of an annotation."""
        for item in ast.walk(annotation):
            if isinstance(item, ast.Constant) and isinstance(item.value, str):
                self.module.any_lines += [item.lineno] * len(ANY.findall(item.value))

    def read_import(self, node: ast.Import) -> None:
        """Note `import a.b`, wherever it stands."""
        for alias in node.names:
            self.module.imports.append(Import(node.lineno, alias.name))
            bound = (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
            self.module.bindings.setdefault(bound[0], (bound[1], None))

    def read_import_from(self, node: ast.ImportFrom) -> None:
        """Note `from a import b`, relative ones made absolute."""
        source = node.module or ""
        if node.level:
            parts = self.module.name.split(".")
            parts = parts[: len(parts) - node.level + self.module.is_package]
            source = ".".join([*parts, *filter(None, [node.module])])
        for alias in node.names:
            self.module.imports.append(Import(node.lineno, source, alias.name))
            if alias.name == "Any":
                self.module.any_lines.append(node.lineno)
            self.module.bindings.setdefault(alias.asname or alias.name, (source, alias.name))

    def read_call(self, node: ast.Call) -> None:
        """Note lookups and imports by string."""
        called = dotted(node.func) or (
            node.func.attr if isinstance(node.func, ast.Attribute) else ""
        )
        last = called.rpartition(".")[2]
        if last in LOOKUPS and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                self.use(node.lineno, str(name.value), node.args[0])
        elif last in {"import_module", "__import__"} and node.args:
            written = "".join(
                str(item.value) for item in ast.walk(node.args[0]) if isinstance(item, ast.Constant)
            )
            if written and f"{written}.".startswith((f"{self.package}.", ".")):
                self.module.by_string.append(node.lineno)
        elif last == "cast" and node.args:
            self.note_any_in_strings(node.args[0])
        self.children(node)

    def read_attribute(self, node: ast.Attribute) -> None:
        """Note private lookups, and what is assigned on self."""
        holder = node.value
        if isinstance(node.ctx, ast.Store) and (owner := self.self_class(holder)):
            owner.on_self.add(node.attr)
        if node.attr == "Any":
            self.module.any_lines.append(node.lineno)
        elif is_private(node.attr):
            self.use(node.lineno, node.attr, holder)
        self.visit(holder)

    def use(self, line: int, name: str, holder: ast.expr) -> None:
        """Note a lookup of a private name."""
        self.module.uses.append(Use(line, name, self.holder(holder)))

    def self_class(self, node: ast.expr) -> Class | None:
        """Return the class whose instance the expression is, if it is the first argument."""
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            if called == "super" and self.around:
                return self.around[-1]
            if called == "type" and len(node.args) == 1:
                return self.self_class(node.args[0])
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if scope.first == node.id:
                    return scope.owner
        return None

    def holder(self, node: ast.expr) -> Holder:
        """Return what the file itself tells of the value that a name is looked up on."""
        if owner := self.self_class(node):
            return Holder("self", owner.name)
        if isinstance(node, ast.Attribute) and (owner := self.self_class(node.value)):
            return Holder("member", owner.name, node.attr)
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if node.id in scope.types:
                    return Holder("value", scope.types[node.id])
        if isinstance(node, ast.Call) and (name := self.value_type(node)):
            return Holder("value", name)
        if name := dotted(node):
            return Holder("name", name)
        return Holder("unknown")

    def value_type(self, node: ast.expr | None) -> str | None:
        """Return the type of a value as written: a constructor call or a known variable."""
        if isinstance(node, ast.Call) and (called := dotted(node.func)):
            if called.rpartition(".")[2] == "cast" and node.args:
                return type_name(node.args[0])
            return f"{called}()"
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if node.id in scope.types:
                    return scope.types[node.id]
        return None

    def read_assign(self, node: ast.Assign) -> None:
        """Note the names and types that an assignment defines."""
        for target in node.targets:
            self.define(target, self.value_type(node.value))
        self.children(node)

    def read_annotated(self, node: ast.AnnAssign) -> None:
        """Note the name and type that an annotated assignment defines."""
        self.note_any_in_strings(node.annotation)
        self.define(node.target, type_name(node.annotation))
        self.children(node)

    def define(self, target: ast.expr, kind: str | None) -> None:
        """Note a name in the scope, class or module that it is defined in."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self.define(item, None)
        elif isinstance(target, ast.Name):
            if self.scopes:
                if kind:
                    self.scopes[-1].types.setdefault(target.id, kind)
            elif self.around:
                self.around[-1].in_body.add(target.id)
                if kind:
                    self.around[-1].types.setdefault(target.id, kind)
            else:
                self.module.top_level.add(target.id)
        elif (
            isinstance(target, ast.Attribute) and kind and (owner := self.self_class(target.value))
        ):
            owner.types.setdefault(target.attr, kind)


def dotted(node: ast.expr) -> str | None:
    """Return `a.b.c` for names and attributes, the generic's name for `a[b]`, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else None
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return None


def type_name(annotation: ast.expr) -> str | None:
    """Return the class that an annotation names, None left aside: `X | None`, `Optional[X]`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return type_name(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return None
    if isinstance(annotation, ast.BinOp):
        sides = [type_name(side) for side in (annotation.left, annotation.right)]
        named = [side for side in sides if side]
        return named[0] if len(named) == 1 else None
    if isinstance(annotation, ast.Subscript):
        outer = dotted(annotation.value) or ""
        if outer.rpartition(".")[2] in {"Optional", "type", "Final", "ClassVar"}:
            return type_name(annotation.slice)
    return dotted(annotation)


def read_layout(module: Module, lines: Sequence[str], comments: Sequence[Comment]) -> None:
    """Note the lines that are too long and the marks that keep the formatter away."""
    module.num_lines = len(lines)
    module.long_lines = [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]
    module.formatter_marks = [c.row for c in comments if FORMATTER_MARK.search(c.text)]


def read_comments(
    module: Module,
    lines: Sequence[str],
    comments: Sequence[Comment],
    bare_strings: Iterable[tuple[int, int]],
) -> None:
    """Count comments and lines of code."""
    header = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    module.comments = sum(
        any(part.strip() and not DIRECTIVE.match(part) for part in comment.text.split("#"))
        for comment in comments
        if comment.row > header
    )
    no_code = {c.row for c in comments if c.alone}
    no_code.update(n for first, last in bare_strings for n in range(first, last + 1))
    module.code_lines = sum(
        bool(line.strip()) and n not in no_code for n, line in enumerate(lines, 1)
    )


def comments_in(text: str) -> list[Comment]:
    """Return the comments of a file; a `#` inside a string is none.

    `tokenize` tells the same and takes most of the time of this program.
    """
    if "#" not in text:
        return []
    lines, starts = text.splitlines(), [0, *(m.end() for m in re.finditer("\n", text))]
    found = []
    for match in STRING_OR_COMMENT.finditer(text):
        if match[0].startswith("#"):
            row = bisect_right(starts, match.start())
            column = match.start() - starts[row - 1]
            found.append(Comment(row, match[0], alone=not lines[row - 1][:column].strip()))
    return found


def read_module(path: Path, *, name: str, shown: str, package: str) -> Module:
    """Read one file.

    Raises:
        SyntaxError: The file is no Python of the running version.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    module = Module(name=name, path=shown, is_package=path.name == "__init__.py")
    reader = Reader(module, ast.parse(text, filename=shown), package)
    comments = comments_in(text)
    read_layout(module, lines, comments)
    read_comments(module, lines, comments, reader.bare_strings)
    return module


def read_side_module(path: Path, *, name: str, shown: str, package: str, ours: set[str]) -> Module:
    """Read what is measured of a file outside the package; parse it only if it may matter."""
    text = path.read_text(encoding="utf-8")
    module = Module(name=name, path=shown, is_package=path.name == "__init__.py")
    read_layout(module, text.splitlines(), comments_in(text) if "fmt:" in text else [])
    if not ours.isdisjoint(PRIVATE_WORD.findall(text)) or name.startswith("benchmarks"):
        Reader(module, ast.parse(text, filename=shown), package)
    return module


def module_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the path of every module below a folder, sorted by path."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


class Code:
    """The modules of one package, with names resolved across files."""

    def __init__(self, modules: Iterable[Module], package: str) -> None:
        self.package = package
        self.modules = {module.name: module for module in modules}
        # Every module and every folder above one, with an __init__.py or without.
        self.folders = {
            ".".join(parts[:length])
            for parts in (name.split(".") for name in self.modules)
            for length in range(1, len(parts) + 1)
        }
        self.classes = [found for m in self.modules.values() for found in m.classes.values()]
        self.members: dict[str, set[str]] = defaultdict(set)  # private member -> its modules
        for found in self.classes:
            for name in filter(is_private, found.in_body | found.on_self):
                self.members[name].add(found.module)

    def resolve(self, module: Module, name: str, depth: int = 0) -> Module | Class | None:
        """Return the module or class of ours that a dotted name means in a module."""
        if name in module.classes:
            return module.classes[name]
        head, _, rest = name.partition(".")
        if head not in module.bindings or depth > 20:
            child = self.modules.get(f"{module.name}.{head}")
            found: Module | Class | None = child
        else:
            source, taken = module.bindings[head]
            found = self.modules.get(source)
            if found is not None and taken is not None:
                if found is module:
                    found = self.modules.get(f"{source}.{taken}")
                else:
                    found = self.resolve(found, taken, depth + 1)
        if not rest or found is None:
            return found
        if isinstance(found, Module):
            return self.resolve(found, rest, depth + 1)
        return self.modules[found.module].classes.get(f"{found.name}.{rest}")

    def bases(self, found: Class) -> list[Class]:
        """Return the direct bases that are classes of ours."""
        home = self.modules[found.module]
        bases = (self.resolve(home, name) for name in found.bases)
        return [base for base in bases if isinstance(base, Class) and base is not found]

    def lineage(self, found: Class) -> list[Class]:
        """Return a class and all its bases of ours, nearest first."""
        line, waiting = [], [found]
        while waiting:
            current = waiting.pop(0)
            if current not in line:
                line.append(current)
                waiting += self.bases(current)
        return line

    def longest_chain(self, found: Class) -> list[Class]:
        """Return the longest path from a class up through bases of ours, itself first."""
        above = [self.longest_chain(base) for base in self.bases(found)]
        return [found, *max(above, key=len, default=[])]

    def edges(self) -> dict[tuple[str, str], list[int]]:
        """Return who imports whom, with the lines."""
        edges: dict[tuple[str, str], list[int]] = defaultdict(list)
        for module in self.modules.values():
            for item in module.imports:
                target = self.import_target(item)
                if target is None or target == module.name:
                    continue
                lines = edges[module.name, target]
                if item.line not in lines:
                    lines.append(item.line)
        return edges

    def import_target(self, item: Import) -> str | None:
        """Return the module of ours that an import takes something from."""
        if item.name is not None and (source := self.modules.get(item.module)):
            child = f"{item.module}.{item.name}"
            if child not in self.modules or item.name in source.top_level:
                return item.module
            bound = source.bindings.get(item.name)
            if bound and ".".join(filter(None, bound)) != child:
                return item.module
            return child
        name = item.module
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name or None

    def private_uses(self, depth: int) -> list[str]:
        """Return the uses of private names across packages `depth` folders deep, as file:line."""
        found = []
        for module in self.modules.values():
            here = module.part(self.package, depth)
            uses = [*self.private_imports(module), *self.private_lookups(module)]
            for line, name, homes in sorted(uses, key=lambda use: use[:2]):
                parts = {self.modules[home].part(self.package, depth) for home in homes}
                if parts and here not in parts:
                    owners = ", ".join(sorted(part or self.package for part in parts))
                    found.append(f"{module.path}:{line}: {name} of {owners}")
        return found

    def private_imports(self, module: Module) -> Iterator[tuple[int, str, set[str]]]:
        """Yield line, name and home of each private name or module that a module imports."""
        for item in module.imports:
            parts = [*item.module.split("."), *([item.name] if item.name else [])]
            for place, part in enumerate(parts):
                home = ".".join(parts[:place])
                if not is_private(part) or home not in self.modules:
                    continue
                # `p/_m.py` is private to `p`: whatever lies in `p`, however deep, may import it.
                is_module = f"{home}.{part}" in self.folders
                if not (is_module and f"{module.name}.".startswith(f"{home}.")):
                    yield item.line, part, {home}

    def private_lookups(self, module: Module) -> Iterator[tuple[int, str, set[str]]]:
        """Yield line, name and possible homes of each private name looked up on something."""
        for use in module.uses:
            if use.name not in NAMED_TUPLE_API:
                yield use.line, use.name, self.homes(module, use)

    def homes(self, module: Module, use: Use) -> set[str]:
        """Return the modules that may define the private name; none if it is not ours."""
        found = self.holder(module, use.holder)
        if isinstance(found, Module):
            return {found.name}
        if isinstance(found, Class):
            line = self.lineage(found)
            definers = [c for c in line if use.name in c.in_body | c.on_self]
            if definers:
                # An attribute that a subclass only assigns belongs to the base that has it too.
                written = next((c for c in definers if use.name in c.in_body), definers[-1])
                return {written.module}
            if use.holder.kind == "self" and any(len(c.bases) > len(self.bases(c)) for c in line):
                return set()  # from a base that is not ours
        if found == "foreign" or use.name in FOREIGN:
            return set()
        return self.members.get(use.name, set())

    def holder(self, module: Module, holder: Holder) -> Module | Class | Literal["foreign"] | None:
        """Return what of ours a private name is looked up on; None if that is not known."""
        if holder.kind == "unknown":
            return None
        if holder.kind == "self":
            return module.classes.get(holder.text)
        home, text = module, holder.text
        if holder.kind == "member":
            owner = module.classes.get(holder.text)
            line = self.lineage(owner) if owner else []
            typed = next((found for found in line if holder.attribute in found.types), None)
            if typed is None:
                return None
            home, text = self.modules[typed.module], typed.types[holder.attribute]
        found = self.resolve(home, text.removesuffix("()"))
        if found is not None or text.endswith("()"):  # a call of theirs may return a thing of ours
            return found
        source, taken = home.bindings.get(text.partition(".")[0], (None, None))
        is_foreign = source is not None and source not in self.modules and taken != "Any"
        return "foreign" if is_foreign else None


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the strongly connected components of two or more nodes, each sorted.

    Example:
        >>> circles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
        [['a', 'b', 'c']]
    """
    after: dict[str, list[str]] = defaultdict(list)
    before: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        after[source].append(target)
        before[target].append(source)
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(after):
        stack = [(start, iter(after[start]))] if start not in seen else []
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            step = next((n for n in rest if n not in seen), None)
            if step is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(step)
                stack.append((step, iter(after.get(step, ()))))
    found, placed = [], set[str]()
    for start in reversed(order):
        group, waiting = [], [start]
        while waiting:
            node = waiting.pop()
            if node not in placed:
                placed.add(node)
                group.append(node)
                waiting += before.get(node, ())
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found)


def package_edges(code: Code) -> dict[tuple[str, str], list[str]]:
    """Return the edges between siblings below their nearest common package, with the places."""
    edges: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (source, target), lines in code.edges().items():
        left, right = source.split("."), target.split(".")
        common = 0
        while common < min(len(left), len(right)) and left[common] == right[common]:
            common += 1
        # A package that imports its own module is a node of its own beside that module.
        ends = tuple(
            ".".join(names[: common + 1]) + (".__init__" if len(names) == common else "")
            for names in (left, right)
        )
        path = code.modules[source].path
        edges[ends[0], ends[1]] += [f"{path}:{line}: imports {target}" for line in lines]
    return edges


def describe_circle(group: Sequence[str], places: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """Return a line that names a circle, then the imports inside it."""
    inside = [
        f"  {place}"
        for (source, target), found in sorted(places.items())
        if source in group and target in group
        for place in found
    ]
    return [f"circle of {len(group)}: {', '.join(group)}", *inside]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One row of the table."""

    key: str
    label: str
    value: float | dict[str, float]
    shown: str
    offenders: tuple[str, ...] = ()
    limit: float | None = None
    gate: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the figure is within its limit; None without one."""
        if self.limit is None or isinstance(self.value, dict):
            return None
        return self.value <= self.limit


def percentile(values: Sequence[int], share: float) -> int:
    """Return the smallest value with at least `share` of all values at or below it; 0 if none.

    Example:
        >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.95)
        (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0


def spread(key: str, label: str, values: Sequence[int], offenders: Sequence[str]) -> Measure:
    """Return a row of median, 95th percentile and maximum."""
    median = int(statistics.median(values)) if values else 0
    figures = {"median": median, "p95": percentile(values, 0.95), "max": max(values, default=0)}
    return Measure(
        key=key,
        label=label,
        value=dict(figures),
        shown="/".join(f"{figure:,}" for figure in figures.values()),
        offenders=tuple(offenders),
    )


def count(
    key: str,
    label: str,
    offenders: Sequence[str],
    *,
    limit: float | None = None,
    gate: bool = False,
) -> Measure:
    """Return a row that counts its own list."""
    return Measure(
        key=key,
        label=label,
        value=len(offenders),
        shown=f"{len(offenders):,}",
        offenders=tuple(offenders),
        limit=limit,
        gate=gate,
    )


def share(
    key: str,
    label: str,
    part: int,
    whole: int,
    *,
    per: int,
    limit: float | None = None,
    offenders: Sequence[str] = (),
) -> Measure:
    """Return a row of a rate."""
    rate = part * per / whole if whole else 0.0
    return Measure(
        key=key,
        label=label,
        value=round(rate, 2),
        shown=f"{rate:.0f} %" if per == 100 and whole and "share" in key else f"{rate:.1f}",
        offenders=tuple(offenders),
        limit=limit,
    )


def measure_circles(code: Code) -> Iterator[Measure]:
    """Yield the rows on imports."""
    edges = code.edges()
    places = {
        (source, target): [f"{code.modules[source].path}:{n}: imports {target}" for n in lines]
        for (source, target), lines in edges.items()
    }
    groups = circles(edges)
    listed = [line for group in groups for line in describe_circle(group, places)]
    yield Measure(
        key="circles",
        label="import circles, modules (in them)",
        value=len(groups),
        shown=f"{len(groups)} ({sum(map(len, groups))})" if groups else "0",
        offenders=tuple(listed),
        limit=0,
        gate=True,
    )
    sibling_places = package_edges(code)
    holders = {name for name, module in code.modules.items() if module.is_package}
    groups = [group for group in circles(sibling_places) if holders & set(group)]
    listed = [line for group in groups for line in describe_circle(group, sibling_places)]
    yield Measure(
        key="package_circles",
        label="import circles, packages (in them)",
        value=len(groups),
        shown=f"{len(groups)} ({sum(map(len, groups))})" if groups else "0",
        offenders=tuple(listed),
        limit=0,
        gate=True,
    )
    by_string = [f"{m.path}:{line}" for m in code.modules.values() for line in m.by_string]
    yield count("string_imports", "own modules imported by string", by_string)


def measure_private_names(code: Code, side: Mapping[str, list[Module]]) -> Iterator[Measure]:
    """Yield the rows on private names."""
    uses = code.private_uses(depth=1)
    yield count("private", "private names across packages", uses, limit=0, gate=True)
    yield count("private_rooms", "the same, folders two deep", code.private_uses(depth=2))
    ours = private_names(code)
    outside = [
        f"{module.path}:{line}: {name}"
        for modules in side.values()
        for module in modules
        for line, name in outside_uses(module, code, modules, ours)
    ]
    yield count("private_outside", "private names read by tests etc.", outside)


def private_names(code: Code) -> set[str]:
    """Return every private name that the package defines, at the top of a module or in a class."""
    at_the_top = {name for m in code.modules.values() for name in filter(is_private, m.top_level)}
    return at_the_top | set(code.members)


def outside_uses(
    module: Module, code: Code, neighbours: list[Module], ours: set[str]
) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private name of ours that a file outside `src` uses."""
    here = {name for m in neighbours for c in m.classes.values() for name in c.in_body | c.on_self}
    here |= module.top_level
    for item in module.imports:
        if item.name and is_private(item.name) and item.module in code.modules:
            yield item.line, item.name
    for use in module.uses:
        if use.name in ours and use.name not in here | NAMED_TUPLE_API | FOREIGN:
            yield use.line, use.name


def measure_classes(code: Code, benchmarks: Sequence[Module]) -> Iterator[Measure]:
    """Yield the rows on names, bases and methods of classes."""
    yield duplicates("duplicates", "public class names defined twice", code.modules.values())
    if benchmarks:
        yield duplicates("duplicates_benchmarks", "the same in benchmarks/", benchmarks)

    def place(found: Class) -> str:
        return f"{code.modules[found.module].path}:{found.line}"

    chains = [code.longest_chain(found) for found in code.classes]
    chains.sort(key=lambda chain: (-len(chain), place(chain[0])))
    longest = len(chains[0]) if chains else 0
    yield Measure(
        key="chain",
        label="longest inheritance chain",
        value=longest,
        shown=str(longest),
        offenders=tuple(
            f"{place(chain[0])}: {len(chain)}: {' -> '.join(found.name for found in chain)}"
            for chain in chains
            if len(chain) > 2
        ),
        limit=2,
    )
    methods = [
        (len(set[str]().union(*(base.methods for base in code.lineage(found)))), found)
        for found in code.classes
    ]
    methods.sort(key=lambda item: (-item[0], place(item[1])))
    most = methods[0] if methods else None
    yield Measure(
        key="methods",
        label="most methods of a class, inherited too",
        value=most[0] if most else 0,
        shown=f"{most[0]} {most[1].name}" if most else "0",
        offenders=tuple(f"{place(found)}: {num} {found.name}" for num, found in methods[:30]),
    )


def duplicates(key: str, label: str, modules: Iterable[Module]) -> Measure:
    """Return the row of public module-level class names that two or more modules define."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for found in module.classes.values():
            if found.top_level and not found.name.startswith("_"):
                homes[found.name].append(f"{module.path}:{found.line}")
    listed = [f"{name}: {', '.join(at)}" for name, at in sorted(homes.items()) if len(at) > 1]
    return count(key, label, listed, limit=0, gate=True)


def measure_text(code: Code, side: Mapping[str, list[Module]]) -> Iterator[Measure]:
    """Yield the rows on `Any`, layout, comments and size."""
    modules = list(code.modules.values())
    num_lines = sum(m.num_lines for m in modules)
    inside = [m for m in modules if m.name.startswith(f"{code.package}.integrations")]
    anys = {m.path: len(m.any_lines) for m in modules}
    for key, label, some, limit in (
        ("any", "`Any` per 1,000 lines", modules, 5.0),
        ("any_integrations", "the same in integrations/", inside, None),
    ):
        ranked = sorted((m for m in some if m.any_lines), key=lambda m: -anys[m.path])
        yield share(
            key,
            label,
            sum(anys[m.path] for m in some),
            sum(m.num_lines for m in some),
            per=1000,
            limit=limit,
            offenders=[f"{m.path}: {anys[m.path]} in {m.num_lines:,} lines" for m in ranked],
        )
    yield count(
        "layout", f"lines > {MAX_COLUMNS} columns + fmt: skip", layout_faults(modules), limit=40
    )
    for folder, some in side.items():
        yield count(f"layout_{folder}", f"the same in {folder}/", layout_faults(some))
    yield share(
        "comments",
        "comments per 100 lines of code",
        sum(m.comments for m in modules),
        sum(m.code_lines for m in modules),
        per=100,
        offenders=[
            f"{m.path}: {m.comments} in {m.code_lines:,} lines of code"
            for m in sorted(modules, key=lambda m: (m.comments / max(m.code_lines, 1), m.path))
            if m.code_lines >= 50
        ],
    )
    yield Measure(
        key="files", label="files in the wheel, .py", value=len(modules), shown=f"{len(modules):,}"
    )
    yield Measure(
        key="lines", label="lines in the wheel, .py", value=num_lines, shown=f"{num_lines:,}"
    )


def layout_faults(modules: Iterable[Module]) -> list[str]:
    """Return the lines that are too long, and the marks that keep the formatter away."""
    faults = []
    for module in modules:
        faults += [f"{module.path}:{line}: too long" for line in module.long_lines]
        faults += [f"{module.path}:{line}: formatter mark" for line in module.formatter_marks]
    return faults


def measure_functions(code: Code) -> Iterator[Measure]:
    """Yield the rows on files and functions."""
    modules = list(code.modules.values())
    longest = sorted(modules, key=lambda m: -m.num_lines)
    yield spread(
        "file_lines",
        "file lines, med / p95 / max",
        [m.num_lines for m in modules],
        [f"{m.path}: {m.num_lines:,}" for m in longest[:30]],
    )
    functions = [(m, f) for m in modules for f in m.functions]
    for key, label, sizes in (
        ("function_lines", "function lines, med / p95 / max", [f.lines for _, f in functions]),
        ("branching", "branching, med / p95 / max", [f.branching for _, f in functions]),
    ):
        ranked = sorted(zip(sizes, functions, strict=True), key=lambda item: -item[0])
        most = [f"{m.path}:{f.line}: {size} {f.name}" for size, (m, f) in ranked[:30]]
        yield spread(key, label, sizes, most)
    public = [(m, f) for m, f in functions if f.public]
    bare = [f"{m.path}:{f.line}: {f.name}" for m, f in public if not f.documented]
    yield share(
        "docstring_share",
        "public functions with docstring",
        len(public) - len(bare),
        len(public),
        per=100,
        offenders=bare,
    )


def measure(root: Path = ROOT, package: str = "trimtab") -> dict[str, Measure]:
    """Measure a checkout and return the rows by key, in the order of the table.

    Raises:
        FileNotFoundError: Neither `src/<package>` nor `<package>` is there.
        SyntaxError: A file does not parse.
    """
    home = next((at for at in (root / "src" / package, root / package) if at.is_dir()), None)
    if home is None:
        raise FileNotFoundError(f"{root}: neither src/{package} nor {package} is a folder here")
    modules = (
        read_module(path, name=name, shown=path.relative_to(root).as_posix(), package=package)
        for name, path in module_files(home)
    )
    code = Code(modules, package)
    private = private_names(code)
    side = {
        folder: [
            read_side_module(
                path,
                name=name,
                shown=path.relative_to(root).as_posix(),
                package=package,
                ours=private,
            )
            for name, path in module_files(root / folder)
        ]
        for folder in SIDE_FOLDERS
        if (root / folder).is_dir()
    }
    other = [
        path for path in home.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}
    ]
    rows = [
        *measure_circles(code),
        *measure_private_names(code, side),
        *measure_classes(code, side.get("benchmarks", [])),
        *measure_text(code, side),
        Measure(
            key="other_files",
            label="other files in the wheel (KB)",
            value=len(other),
            shown=f"{len(other)} ({sum(path.stat().st_size for path in other) // 1024:,})",
            offenders=tuple(str(path.relative_to(root)) for path in other),
        ),
        *measure_functions(code),
    ]
    return {row.key: row for row in rows}


def as_table(rows: Iterable[Measure], package: str) -> str:
    """Return the table, one row a measure, the anchors on the right."""
    cells = [["", package, "target", "", *ANCHOR_NAMES]]
    for row in rows:
        target = "" if row.limit is None else f"{'≤ ' if row.limit else ''}{row.limit:g}"
        verdict = {True: "met", False: "not met", None: ""}[row.met]
        known = ANCHORS.get(row.key, ("",) * len(ANCHOR_NAMES))
        cells.append([row.label, row.shown, target, verdict, *known])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        [line[0].ljust(widths[0])]
        + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        for line in cells
    )
    table = "\n".join("  ".join(line).rstrip() for line in lines)
    return f"{table}\n\n{SOURCES}"


def as_json(rows: Iterable[Measure]) -> str:
    """Return every figure with its limit."""
    return json.dumps(
        {row.key: {"value": row.value, "limit": row.limit, "met": row.met} for row in rows},
        indent=2,
    )


def as_check(rows: Iterable[Measure]) -> tuple[str, int]:
    """Return what the gates say, and the exit status."""
    gates = [row for row in rows if row.gate]
    broken = [row for row in gates if row.met is False]
    if not broken:
        return f"house: {', '.join(row.label for row in gates)}: 0", 0
    lines = []
    for row in broken:
        lines.append(f"house: {row.label}: {row.shown}, must be {row.limit:g}")
        lines += [f"  {offender}" for offender in row.offenders]
    return "\n".join(lines), 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--package", default="trimtab", help="the package in src/ or the root")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="exit 1 where a gate is not 0")
    what.add_argument("--json", action="store_true", help="print every figure as JSON")
    what.add_argument("--list", metavar="NAME", help="print the places behind one figure")
    asked = parser.parse_args(arguments)
    gc.disable()  # syntax trees are many small objects that all stay: collecting finds nothing
    try:
        rows = measure(asked.root.resolve(), asked.package)
    except (FileNotFoundError, SyntaxError) as error:
        print(f"house: {error}", file=sys.stderr)
        return 2
    if asked.list is not None:
        if asked.list not in rows:
            print(f"house: no measure {asked.list!r}; there are {', '.join(rows)}", file=sys.stderr)
            return 2
        sys.stdout.writelines(f"{line}\n" for line in rows[asked.list].offenders)
        return 0
    if asked.check:
        text, status = as_check(rows.values())
        print(text)
        return status
    print(as_json(rows.values()) if asked.json else as_table(rows.values(), asked.package))
    return 0


if __name__ == "__main__":
    sys.exit(main())
