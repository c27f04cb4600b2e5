"""Branches of a launch script: taken, left, or open where the caller decides.

Conditions are compared as text and never run.
"""

import re
from collections.abc import Callable
from typing import Literal

__all__ = ["Branches"]

Verdict = Literal["taken", "left", "open"]

HEAD = re.compile(r"\s*(if|elif|else|fi|case|esac)\b(.*)", re.DOTALL)
EQUAL = re.compile(r"\[\[?\s+(.+?)\s+(=|==|!=|-eq|-ne)\s+(.+?)\s+\]\]?")
EMPTY = re.compile(r"\[\[?\s+(-z|-n)\s+(.+?)\s+\]\]?")


class Branches:
    """Follows `if`, `elif`, `else`, `fi` and `case` from statement to statement."""

    def __init__(self, expand: Callable[[str], str]) -> None:
        """Take how a text's variables are filled in."""
        self.expand = expand
        self.stack: list[list[Verdict]] = []

    @property
    def verdict(self) -> Verdict:
        """Whether the statement at hand runs: it does where every branch around it is taken."""
        around = [branch[-1] for branch in self.stack]
        return "left" if "left" in around else "open" if "open" in around else "taken"

    def enter(self, statement: str) -> str:
        """Take a statement and return the part of it that is inside the branch.

        Empty where the statement only opens or ends a branch.
        """
        found = HEAD.match(statement)
        if found is None:
            return re.sub(r"^\s*then\b\s*", "", statement)
        word, rest = found[1], found[2]
        if word in {"fi", "esac"}:
            if self.stack:
                self.stack.pop()
            return ""
        if word in {"if", "case"}:
            self.stack.append(["open" if word == "case" else self.judge(rest)])
        elif self.stack:
            before = self.stack[-1]
            mine: Verdict = "taken" if word == "else" else self.judge(rest)
            if "taken" in before:
                mine = "left"
            elif "open" in before and mine == "taken":
                mine = "open"
            before.append(mine)
        return rest.strip() if word == "else" else ""

    def judge(self, condition: str) -> Verdict:
        """Return whether a condition holds; `open` where the script alone does not decide it."""
        text = self.expand(condition).strip().removesuffix("then").strip().rstrip(";").strip()
        if compared := EQUAL.fullmatch(text):
            left, right = (side.strip("\"'") for side in (compared[1], compared[3]))
            if any(sign in left + right for sign in "$`*?["):
                return "open"
            return "taken" if (left == right) == (compared[2] in {"=", "==", "-eq"}) else "left"
        if (empty := EMPTY.fullmatch(text)) and "$" not in empty[2]:
            return "taken" if (empty[2].strip("\"'") == "") == (empty[1] == "-z") else "left"
        return "open"
