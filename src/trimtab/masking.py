"""Secrets in settings, environments and command lines, masked wherever they are written or shown.

What is a secret is told by its name (`api_key`, `HF_TOKEN`) or by the shape of its value (`hf_…`,
a JWT, `https://user:password@host`). Both are data, below. A name counts only where its value can
be a secret: a number, a switch, a special token (`<eos>`) or a reference (`${HF_TOKEN}`) is none.

Blind to a secret without either sign: a bare hexadecimal key under a name such as `x`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["MASK", "is_secret", "masked", "masked_text"]

MASK: Final = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SECRET_NAMES = (
    r"api_?keys?",
    r"(?:access|account|admin|app|auth|bot|client|consumer|deploy|encryption|hmac|kaggle|licen[cs]e"
    r"|master|private|secret|server|service|shared|signing|ssh|storage|subscription|tenant|tls"
    r"|wandb|comet|neptune|openai|anthropic|aws|azure|gcp|rsa"
    r")_?keys?(?:_?(?:id|base64|b64|pem|json|data|hex))?",
    r"[a-z\d]*passw(?:or)?ds?",
    r"pass_?(?:phrase|code|wd)",
    r"\w+_pwd",
    r"(?:db|user|smtp|ftp|http|proxy|mysql|postgres|pg|redis|mail|admin|login|rsync)_?pass",
    r"secrets?(?:_(?:key|id|value|string|text|json))?",
    r"credentials?(?:_json)?",
    r"(?:proxy_)?authori[sz]ation",
    r"(?:\w+_)?auth(?:_header|_info|_string)?",
    r"bearer",
    r"jwt",
    r"(?:set_)?cookies?",
    r"(?:access|api|app|auth|bearer|bot|client|csrf|deploy|gh|git|github|gitlab|hf|hub|hugging_?face"
    r"|id|identity|login|neptune|oauth2?|pat|personal|private|push|read|refresh|registry|s3|sas"
    r"|secret|security|server|service|session|slack|sts|tracking|upload|user|vault|wandb|web"
    r"|webhook|write|comet|dagshub|clearml|mlflow|aws|azure|gcp|replicate|modal|npm|pypi|x)_?tokens?",
    r"(?:connection|conn)_?str(?:ing)?",
    r"sas_?url",
)
"""The end of a name in lower case, its words joined by `_`."""

WEAK_NAMES = (r"(?:\w+_)?token",)
"""Secrets, unless a word in the name makes it a token of a text; and the value can be one."""

WEBHOOK_NAMES = (r"(?:\w+_)?web_?hooks?(?:_?ur[li]s?)?",)
"""Names of addresses whose path is a secret; the host is kept."""

HARMLESS_WORDS = _words(
    """
    added assistant audio begin bos boi boa cls column context count current decoder
    decoding delimiter dtype dummy end eoi eos eot extra fim first forced image img instruct
    language lang last length mask max mean media min model modality multi n next nosave num
    number of pad padding patch per placeholder prefix prev previous prompt ratio repo
    response role sample sep separator sequence single source special start stop suffix
    suppress system target task text think time total train turn unk value valid video
    vision vocab word class register memory latent query action
    """
)
"""Words that make a `token` one of a text."""

HARMLESS_ENDS = _words(
    """
    count counts dim dims dir directory enabled env expires expiry field file filename heads
    hint idx index interval len length limit loss max mean min mode name names num path
    paths per policy provider required rule size source style timeout ttl type types var
    variable version
    """
)
"""Last words of a name that holds something about a secret: where it lies, how long it is."""

SHAPES = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    r"\bsk-[A-Za-z0-9_-]{16,}",
    r"\b[sr]k_(?:live|test)_[A-Za-z0-9]{10,}",
    r"\b(?:hf|gsk|r8|npm|dop_v1|dckr_pat|wandb_v1|api_org)_[A-Za-z0-9_]{20,}",
    r"\bgh[opsur]_[A-Za-z0-9]{20,}",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bglpat-[A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    r"\bAIza[A-Za-z0-9_-]{30,}",
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    r"\bxapp-[A-Za-z0-9-]{10,}",
    r"\bnvapi-[A-Za-z0-9_-]{20,}",
    r"\bpypi-[A-Za-z0-9_-]{20,}",
    r"\bpplx-[A-Za-z0-9]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
)
"""Values that are secrets under any name; each is masked whole."""

KEPT_STARTS = (
    r"\bhttps?://hooks\.slack(?:-gov)?\.com/",
    r"\bhttps?://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/",
    r"\bhttps?://[\w.-]+\.webhook\.office\.com/",
    r"\bhttps?://maker\.ifttt\.com/trigger/",
    r"\bhttps?://api\.telegram\.org/bot",
    r"\bhttps?://events\.pagerduty\.com/integration/",
    r"\b(?:[Bb]earer|[Bb]asic) (?=\S{0,200}\d)(?=[A-Za-z0-9._~+/=-]{16})",
)
"""What stands before a secret that runs to the next blank or quote; the start is kept."""

_SHAPE = re.compile("|".join(f"(?:{p})" for p in SHAPES), re.DOTALL)
_KEPT = re.compile(rf"({'|'.join(KEPT_STARTS)})[^\s\"'<>\\]+")
_LOGIN = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://)([^\s/?#@\"'<>]{1,400})@")
_QUERY = re.compile(
    r"([?&](?:sig|signature|se?cret|token|key|code|pass(?:word)?|[\w-]{0,40}(?:api[_-]?key|token"
    r"|secret|signature|credential|password))=)[^&\s\"'<>#;]+",
    re.IGNORECASE,
)
_VALUE = r"(?:\$\{[^{}\s]{0,200}\}|\"(?:[^\"\\\n]|\\.){0,4000}\"|'(?:[^'\\\n]|\\.){0,4000}'|[^\s,;&\"'<>(){}\[\]]+)"
_WORD = r"api_?key|hook|token|secret|passw|passp|passc|_pwd|_pass|auth|cred|cookie|jwt|key|bearer|conn|sas"
_NAMED = rf"[\w.\-/]{{0,60}}?(?:{_WORD})[\w.-]{{0,40}}"
_PAIR = re.compile(
    rf"(?<![\w.\-/])(?P<name>{_NAMED})(?P<mid>[\"']?\]?\s{{0,3}}(?:=>?|:)\s{{0,3}})(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?<!\S)(?P<name>--?{_NAMED})(?P<mid>[ \t]+)(?P<value>(?!-){_VALUE})", re.IGNORECASE
)
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)(\"?'?\s{0,3}:\s{0,3}[\"']?)"
    r"[^\r\n\"']+",
    re.IGNORECASE,
)
_HINT = re.compile(
    rf"{_WORD}|sig|code=|pass|://|private|sk-|[sr]k_|hf_|gsk_|r8_|npm_|dop_v1|dckr_pat|wandb_v1"
    r"|api_org|gh[opsur]_|github_pat|glpat-|AKIA|ASIA|ABIA|ACCA|AIza|ya29|xox|xapp|nvapi|pypi-|pplx-"
    r"|SG\.|eyJ|basic ",
    re.IGNORECASE,
)
_SECRET = re.compile(rf"(?:.*_)?(?:{'|'.join(SECRET_NAMES)})")
_WEAK = re.compile("|".join(WEAK_NAMES))
_WEBHOOK = re.compile("|".join(WEBHOOK_NAMES))
_ADDRESS = re.compile(r"([a-z]{2,10}://[^/\s]+/?).*", re.DOTALL | re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_REFERENCE = re.compile(
    r"\$\{[^{}]*\}|\$\(?\w+\)?|%\w+%|\{\{[^{}]*\}\}|<[^<>]*>|\[[A-Z_]+\]|(?:env|vault|secret|file)[:/].*"
    r"|os\.(?:environ|getenv)\b.*|(?:\\?\*)+|…+|x{3,}|</?s>",
    re.DOTALL,
)
_SWITCH = _words(
    """
    true false none null yes no on off auto default basic bearer token oauth oauth2 iam
    anonymous required optional missing unset set invalid redacted masked hidden
    """
)
_NUMBER = re.compile(r"[-+]?[\d.,_ ]+(?:[eE][-+]?\d+)?%?")
_PATH = re.compile(r"\.{0,2}/")
_WORD_ONLY = re.compile(r"[A-Z]?[a-z]{1,11}")
_MAX_DEPTH = 60


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret.

    Example:
        >>> is_secret("wandb.apiKey"), is_secret("HF_TOKEN"), is_secret("eos_token")
        (True, True, False)
    """
    return _strength(name) > 0


def _strength(name: str) -> int:
    """Return 2 where the name says a secret, 1 where it may, 0 otherwise; 3 of a webhook."""
    if len(name) > 200:
        name = name[-200:]
    if not _HINT.search(name):
        return 0
    last = re.split(r"[./\[\]: ]", name.strip().strip("\"'").rstrip("]"))[-1]
    words = [w.lower() for w in re.split(r"[_\W]+", _CAMEL.sub("_", last)) if w]
    if not words or words[-1] in HARMLESS_ENDS or words[0] in ("num", "has", "is", "n", "max"):
        return 0
    plain = "_".join(words)
    if words[-1] in ("token", "tokens") and HARMLESS_WORDS.intersection(words[:-1]):
        return 0
    if _WEBHOOK.fullmatch(plain):
        return 3
    return 2 if _SECRET.fullmatch(plain) else int(_WEAK.fullmatch(plain) is not None)


def _hidden(value: str, strength: int, *, prose: bool) -> str:
    """Return a value under a name of this strength, masked where it can be a secret."""
    said = value.strip()
    if not said or said.lower() in _SWITCH or _REFERENCE.fullmatch(said):
        return value
    if strength == 3:
        address = _ADDRESS.fullmatch(said)
        return value if address is None else address[1] + MASK
    if strength == 2 and not (prose and _NUMBER.fullmatch(said)):
        return MASK
    if strength < 2 and (len(said) < 8 or _NUMBER.fullmatch(said) or " " in said):
        return value
    if prose and (strength == 2 or not (len(said) >= 20 or re.search(r"\d", said))):
        return value
    return MASK


def masked_text(text: str) -> str:
    r"""Return text with the secrets in it masked: by their shape, or by the name before them.

    Example:
        >>> masked_text("python train.py --api-key 3c9f00b1 --lr 6e-5 db=postgres://me:pw@host/x")
        'python train.py --api-key *** --lr 6e-5 db=postgres://me:***@host/x'
    """
    if not _HINT.search(text):
        return text
    text = _SHAPE.sub(MASK, text)
    text = _KEPT.sub(lambda m: m[1] + MASK, text)
    text = _LOGIN.sub(_without_login, text)
    text = _QUERY.sub(lambda m: m[1] + MASK, text)
    text = _HEADER.sub(lambda m: m[0] if MASK in m[0][-4:] else m[1] + m[2] + MASK, text)
    text = _PAIR.sub(_without_value, text)
    return _FLAG.sub(_without_value, text)


def _without_login(match: re.Match[str]) -> str:
    user, colon, password = match[2].partition(":")
    if colon:
        hide = password and not _REFERENCE.fullmatch(password)
        return f"{match[1]}{user}:{MASK}@" if hide else match[0]
    return f"{match[1]}{MASK}@" if len(user) >= 16 else match[0]


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "\"'" else ""
    bare = value.strip(quote) if quote else value
    strength = _strength(match["name"].lstrip("-"))
    if not strength or MASK in bare:
        return match[0]
    if _PATH.match(match["name"]) and match["mid"].strip() == ":" and _WORD_ONLY.fullmatch(bare):
        return match[0]  # what a program says of a file: "/etc/passwd: Permission denied"
    # "auth: 401" is prose; "password=1234" and "'password': '1234'" are settings
    prose = strength == 1 or (not quote and ":" in match["mid"])
    return f"{match['name']}{match['mid']}{quote}{_hidden(bare, strength, prose=prose)}{quote}"


def masked(value: object, *, name: str = "") -> object:
    """Return a document with every secret in it masked: under a secret name, or of their shape.

    Mappings and sequences keep their form. In a list of words, as of a command line, what follows
    a flag of a secret name is masked.

    Args:
        value: Anything that JSON can hold.
        name: The name of the setting, where it is one.

    Example:
        >>> masked({"lr": 6e-5, "hub": {"token": "hf0123456789"}, "eos_token": "</s>"})
        {'lr': 6e-05, 'hub': {'token': '***'}, 'eos_token': '</s>'}
    """
    return _masked(value, _strength(name) if name else 0, 0)


def _masked(value: object, strength: int, depth: int) -> object:
    if isinstance(value, str):
        shown = _hidden(value, strength, prose=False) if strength else value
        return masked_text(value) if shown == value else shown
    if value is None or isinstance(value, bool) or depth > _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {
            k: _masked(v, max(_strength(k) if isinstance(k, str) else 0, strength), depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        items = _masked_items(value, strength, depth + 1)
        return items if isinstance(value, list) else tuple(items)
    return MASK if strength == 2 and isinstance(value, int | float) else value


def _masked_items(values: Sequence[object], strength: int, depth: int) -> list[object]:
    items: list[object] = []
    before = 0
    for value in values:
        is_flag = isinstance(value, str) and value.startswith("-")
        items.append(_masked(value, strength if is_flag else max(before, strength), depth))
        plain_flag = is_flag and "=" not in str(value)
        before = _strength(str(value).lstrip("-")) if plain_flag else 0
    return items
