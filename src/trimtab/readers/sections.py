"""Text around the records of a log: launches in a plain log, headings in a chronicle.

A chronicle is Markdown written by the people who run the training, with excerpts of the log in it:

    # Try 2
    - Seed: `43`
    - Restarted from `global_step6210`

Such a heading, an argument dump or a "loaded checkpoint" line begins an attempt; the values it
names before its first record become its settings.
"""

import re
from dataclasses import dataclass, field

from trimtab.record import RecordBuilder

__all__ = ["Sections"]

# The headings of BigScience's chronicles, and of logbooks like them.
_HEADING = re.compile(
    r"#{1,6}\s+\**(?:try|experiment|exp|run|attempt|round|trial|restart)[\s#_-]*(\d+(?:\.\d+)?)\b",
    re.IGNORECASE,
)
_SETTING = re.compile(r"[-*]\s+\**([A-Za-z][\w ]{0,23}?)\**\s*:\**\s*`?([^`\s(][^`(]*)")
_FROM = re.compile(
    r"(?:start(?:ed|ing)?\s+from|roll(?:ed|ing)?\s*back\s+to|resum(?:ed?|ing)\s+from)\s+`?"
    r"(?:global_step|iteration\s*|step\s*)(\d[\d_,]*)(k?)\b",
    re.IGNORECASE,
)
_LOADED = re.compile(r"loaded checkpoint .*?at iteration\s+(\d+)")
# Megatron's dump at the launch: the name, dots to a fixed column, the value.
_ARGUMENT = re.compile(
    r"\b(clip_grad|gradient_clipping|seed|lr|min_lr|lr_warmup_iters|lr_warmup_samples|adam_beta1"
    r"|adam_beta2|adam_eps|weight_decay|init_method_std|num_layers|hidden_size|seq_length"
    r"|global_batch_size|train_iters|log_interval|fp16|bf16)\s*\.{3,}\s*(\S+)"
)


@dataclass
class Sections:
    """Collects the settings and origin of the attempt that the next record begins."""

    builder: RecordBuilder
    number: str | None = None
    parent_step: float | None = None
    settings: dict[str, str] = field(default_factory=dict)
    why: str = ""
    pending: bool = False
    """Whether the next record begins an attempt."""
    empty: list[str] = field(default_factory=list)
    """Headings of attempts of which no record is quoted."""
    used: set[str] = field(default_factory=set)
    in_chronicle: bool = False

    def see(self, line: str) -> None:
        """Look at one line that is no record."""
        first = line[:1]
        if first == "#":
            self._see_heading(line)
        # `first` is empty for an empty line, and an empty string is in every string.
        elif first in "-*" and first:
            if self.in_chronicle and self.pending:
                self._see_bullet(line)
        elif "..." in line:
            self._see_argument(line)
        elif "loaded checkpoint" in line and (match := _LOADED.search(line)):
            self.pending = True
            self.parent_step = float(match[1])

    def begin(self) -> None:
        """Tell the builder that the next row begins the attempt; forget what was collected."""
        # A chronicle may have two headings of one number; two attempts of one number would be one.
        number = self.number if self.number not in self.used else None
        self.builder.start_attempt(
            number=number, parent_step=self.parent_step, settings=self.settings, why=self.why
        )
        if number is not None:
            self.used.add(number)
        self._forget()

    def close(self) -> list[str]:
        """Return the notes."""
        if self.pending and self.in_chronicle:
            self.empty.append(self.why)
        if not self.empty:
            return []
        return [f"no records are quoted of: {', '.join(self.empty)}"]

    def _forget(self) -> None:
        self.number, self.parent_step, self.why, self.pending = None, None, "", False
        self.settings = {}

    def _see_heading(self, line: str) -> None:
        match = _HEADING.match(line)
        if match is None:
            return
        if self.pending and self.in_chronicle:
            self.empty.append(self.why)
        self._forget()
        self.in_chronicle = self.pending = True
        self.number = match[1] if "." in match[1] else f"{match[1]}.0"
        self.why = line.strip("# \t*")

    def _see_bullet(self, line: str) -> None:
        match = _FROM.search(line)
        if match is not None:
            step = float(re.sub("[_,]", "", match[1])) * (1000 if match[2] else 1)
            # Step 0 means from scratch, which is no parent.
            self.parent_step = step if step > 0 else None
        elif (match := _SETTING.match(line)) is not None:
            self.settings[match[1].strip().lower()] = match[2].strip()

    def _see_argument(self, line: str) -> None:
        match = _ARGUMENT.search(line)
        if match is None:
            return
        name, value = match[1], match[2]
        self.pending = True
        self.settings[name] = value
        try:
            fact = float(value)
        except ValueError:
            return
        # Both may be printed: DeepSpeed's must not overwrite Megatron's.
        if name != "gradient_clipping" or "clip" not in self.builder.facts:
            self.builder.facts["clip" if "clip" in name else name] = fact
