"""Launch scripts: variables, arrays and arithmetic are followed as text. Nothing is ever run."""

import re
from dataclasses import dataclass, field

from trimtab.configs.arguments import (
    argument_tree,
    count_options,
    launcher_tree,
    spelled_options,
)
from trimtab.configs.document import Document, PathKey
from trimtab.configs.shell_branches import Branches
from trimtab.configs.text_sources import read_json
from trimtab.configs.values import arithmetic

__all__ = ["expand", "read_shell"]

ASSIGN = re.compile(
    r"(?:(?:export|local|declare(?:\s+-\w+)?|readonly|set|setenv)\s+)?([A-Za-z_]\w*)(\+?)=(.*)",
    re.DOTALL,
)
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n(.*?)\n\s*\1[ \t]*(?=\n|$)", re.DOTALL)
VARIABLE = re.compile(
    r"\$\(\((?P<math>[^()]*(?:\([^()]*\)[^()]*)*)\)\)"
    r"|\$\{(?P<name>\w+)(?P<index>\[[@*\w]*\])?(?P<rest>[:%#/^,+-][^{}]*)?\}"
    r"|\$(?P<bare>\w+)"
    r"|\$\(\s*expr\s+(?P<expr>[^()`]*)\)"
    r"|\$\(\s*(?:echo\s+)?[\"']?(?P<bc>[^|()`]*?)[\"']?\s*\|\s*bc[^)]*\)"
)
SBATCH = re.compile(r"^\s*#\s*(?:SBATCH|PBS|BSUB)\s+(.*)$", re.MULTILINE)
MAX_EXPANSION = 200_000
MAX_DEPTH = 8
MAX_WORDS = 10_000


@dataclass
class Shell:
    """What is known while a script is read from top to bottom."""

    variables: dict[str, str] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)

    def assign(self, name: str, value: str, *, sure: bool) -> None:
        """Set a variable. Where open branches disagree, only the caller knows: it stays unset."""
        if sure:
            self.variables[name] = value
            self.sure.add(name)
        elif name not in self.sure:
            known = self.variables.get(name)
            if known is not None and known.strip() not in value:
                self.variables.pop(name)
                self.sure.add(name)
            else:
                self.variables[name] = value


def read_shell(text: str) -> Document:
    """Read the options of the training command in a launch script, sbatch file or command line.

    The command with the most options counts. Branches are followed where their condition compares
    what the script itself sets; a variable set in any other branch is used only where no line
    outside sets it. What the script does not define stays unresolved and is left out. Options and
    `name=value` overrides of a launcher (torchrun, srun) stand under `launcher`.

    Raises:
        ValueError: No command with options is found.
    """
    heredocs = [match[2] for match in HEREDOC.finditer(text)]
    stripped = HEREDOC.sub(lambda match: re.sub(r"<<.*", "", match[0].split("\n")[0]), text)
    shell = Shell()
    branches = Branches(lambda condition: expand(condition, shell.variables))
    for statement in statements(stripped):
        inside = branches.enter(statement)
        if inside.strip() and branches.verdict != "left":
            obey(shell, inside, sure=branches.verdict == "taken")
    return assemble(shell, text, heredocs)


def assemble(shell: Shell, text: str, heredocs: list[str]) -> Document:
    """Return the document of the command with the most options, its launcher and its heredocs."""
    bodies = [words(expand(re.sub(r"\\\s*\n", " ", body), shell.variables)) for body in heredocs]
    candidates = [*shell.commands, *bodies, *(words(value) for value in shell.variables.values())]
    best = max(candidates, key=count_options, default=[])
    if count_options(best) < 1 and len(shell.variables) >= 3:
        return Document(dict(shell.variables), "assignments")
    if len(best) > MAX_WORDS:
        raise ValueError(f"a command of more than {MAX_WORDS} words, as no training command has")
    if count_options(best) < 1:
        raise ValueError("line 1: no command with options was found in this script")
    tree = argument_tree(best)
    launch = launcher_tree(best) | program(best)
    for header in SBATCH.findall(text):
        launch = {**launcher_tree(words(header.split(" #")[0])), **launch}
    if launch:
        tree["launcher"] = launch
    for body in heredocs:
        try:
            tree.setdefault("deepspeed_json", read_json(expand(body, shell.variables)).tree)
        except ValueError:
            continue
    lines: dict[PathKey, int] = {}
    for key in tree:
        spelled = re.search(rf"--?{re.escape(key).replace('_', '[-_]')}\b", text)
        if spelled:
            lines[(key,)] = text.count("\n", 0, spelled.start()) + 1
    return Document(tree, "args", lines, spelled=spelled_options(best))


def program(command: list[str]) -> dict[str, str]:
    """Return the Python file that a command runs, by its name without folders.

    {} where there is none.
    """
    file = next((word for word in command if word.endswith(".py")), "")
    return {"program": file.rsplit("/", 1)[-1]} if file else {}


def obey(shell: Shell, statement: str, *, sure: bool) -> None:
    """Take one statement: an assignment, or a command to remember."""
    statement = re.sub(r"^\s*(then|do|else|export(?=\s+\w+\s*$))\s*", "", statement).strip()
    found = ASSIGN.fullmatch(statement)
    if found and not re.match(r"\S*\s+\S", unquoted(found[3])):
        name, plus, value = found[1], found[2], found[3].strip()
        if value.startswith("(") and value.endswith(")"):
            value = value[1:-1]
        value = expand(" ".join(words(value)) if value[:1] in "\"'" else value, shell.variables)
        if plus:
            sure = True  # what one branch adds does not contradict what another does
            value = f"{shell.variables.get(name, '')} {value}"
        shell.assign(name, value[:MAX_EXPANSION], sure=sure)
        return
    whole = statement
    while re.match(r"[A-Za-z_]\w*=\S*\s+\S", statement):
        first, _, rest = statement.partition(" ")
        name, _, value = first.partition("=")
        value = expand(value.strip("\"'"), shell.variables)
        if ASSIGN.fullmatch(rest.strip()):  # `A=1 B=2`: both stay
            shell.assign(name, value, sure=sure)
        else:
            shell.variables.setdefault(name, value)
        statement = rest.strip()
    if statement != whole and ASSIGN.fullmatch(statement) and not re.search(r"\s--?\w", statement):
        obey(shell, statement, sure=sure)
        return
    shell.commands.append(words(expand(statement, shell.variables)))


def unquoted(value: str) -> str:
    """Return a value with what is quoted or in brackets replaced, to see whether it ends."""
    value = re.sub(r"\"(?:\\.|[^\"\\])*\"|'[^']*'", "Q", value)
    return (
        "Q"
        if value.startswith("(")
        else re.sub(r"\$\(\(.*?\)\)|\$\([^()]*\)|`[^`]*`|\$\{[^}]*\}", "Q", value)
    )


def statements(text: str) -> list[str]:
    """Split a script into statements: quotes and arrays may span lines, comments are left out."""
    text = text.replace("\r", "")
    found: list[str] = []
    current: list[str] = []
    quote = ""
    array = 0
    position = 0
    while position < len(text):
        sign = text[position]
        if sign == "\\" and quote != "'":
            pair = text[position : position + 2]
            trailing = re.match(r"\\[ \t]*\n", text[position:])
            current.append(" " if trailing else pair)
            position += len(trailing[0]) if trailing else 2
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#" and (not current or current[-1] in " \t\n("):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            # A comment between continued lines does not end the command in the way people mean it.
            if array == 0 and continued(current):
                position += 1
            continue
        elif sign == "(":
            array += 1
        elif sign == ")":
            array = max(0, array - 1)
        elif ends(sign, text[position : position + 2], current) and not array:
            found.append("".join(current))
            current = []
            position += 2 if text[position : position + 2] in ("&&", "||", "|&") else 1
            continue
        current.append(sign)
        position += 1
    return [statement.strip() for statement in [*found, "".join(current)] if statement.strip()]


def ends(sign: str, pair: str, current: list[str]) -> bool:
    """Whether a statement ends here; `&&` and `||` of a condition belong to it."""
    if pair in ("&&", "||"):
        return not re.match(r"\s*(if|elif|while)\b", "".join(current))
    return sign in "\n;|"


def continued(current: list[str]) -> bool:
    """Whether the last sign before a comment was a line continuation."""
    return bool(current) and current[-1] == " " and "".join(current[-3:]).strip() == ""


def words(text: str) -> list[str]:
    """Split into words and remove quotes.

    A quoted text stays one word, unless it holds options itself.
    """
    found: list[str] = []
    for raw in re.findall(r"(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\\.|[^\s\"'])+", text):
        bare = re.sub(
            r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'", lambda m: m[1] if m[1] is not None else m[2], raw
        )
        if raw[:1] in "\"'" and re.search(r"(^|\s)--?\w", bare):
            found.extend(words(bare))
        elif raw[:1] in "\"'" and "\n" in bare:
            found.extend(bare.split())
        else:
            found.append(bare)
    return found


def expand(text: str, variables: dict[str, str], depth: int = 0) -> str:
    """Return a text with the known variables filled in; unknown ones stay as they are.

    A variable also stays where its value would make the text longer than `MAX_EXPANSION`, since
    variables may double from line to line.
    """
    left = MAX_EXPANSION

    def bounded(match: re.Match[str]) -> str:
        nonlocal left
        found = value(match)
        if len(found) > left:
            return match[0]
        left -= len(found)
        return found

    def value(match: re.Match[str]) -> str:
        if match["math"] is not None or match["bc"] is not None or match["expr"] is not None:
            inner = expand(
                match["math"] or match["bc"] or match["expr"] or "", variables, depth + 1
            )
            inner = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), inner)
            whole = match["bc"] is None
            result = arithmetic(
                re.sub(r"(?<![/])/(?![/])", "//", inner) if whole else inner.strip()
            )
            return match[0] if result is None else repr(result)
        name, rest = match["name"] or match["bare"], match["rest"] or ""
        if name in variables and not rest.startswith(("#", "%", "/")):
            found = variables[name]
            if re.fullmatch(r"\[\d+\]", match["index"] or ""):
                items = found.split()
                found = (
                    items[int(match["index"][1:-1])]
                    if int(match["index"][1:-1]) < len(items)
                    else ""
                )
            return found
        # `${LR:-3e-4}`: the script's own fallback is the best guess where the caller sets nothing
        fallback = re.match(r":?[-=](.*)", rest)
        return (
            expand(fallback[1].strip("\"'"), variables, depth + 1)
            if fallback and name not in variables
            else match[0]
        )

    if depth > MAX_DEPTH:  # a variable that holds itself
        return text
    for _ in range(6):  # a variable's value may name another variable
        left = MAX_EXPANSION
        grown = VARIABLE.sub(bounded, text)
        if grown == text or len(grown) > MAX_EXPANSION:
            break
        text = grown
    return text
