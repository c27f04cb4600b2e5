"""Words of training logs in other languages, put into English before a log is read.

A log in another language is the same log with other words, so its lines are translated word by
word, and every reader of text and tables goes on as with English ones. Only in files in which a
word for the loss, with a number behind it, stands on some lines, or in the header of a table; a
language then brings all of its words, and no other language does. Words that mean the loss decide
which language it is; where there are none, those for a reward or an accuracy do, beside a word for
what counts the rows, since both stand in prose as well.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

__all__ = ["header_in_english", "translator"]

_FEWEST_LINES = 3
_DECIDING = ("loss", "reward", "accuracy")
_COUNTS = ("epoch", "step", "iteration", "episode")
_COUNT = re.compile(rf"(?<![^\W_])(?:{'|'.join(_COUNTS)})s?(?![^\W_])", re.IGNORECASE)
_ENGLISH = frozenset({"precision"})
"""Words of another language that decide nothing, as they are English ones as well."""

_LANGUAGES: Mapping[str, Mapping[str, str]] = {
    "German": {
        "loss": "verlust|trainingsverlust|kosten",
        "val loss": "validierungsverlust",
        "step": "schritt|schritte",
        "epoch": "epoche",
        "validation": "validierung|validierungs",
        "accuracy": "genauigkeit",
        "learning rate": "lernrate",
        "reward": "belohnung|gesamtbelohnung",
        "mean": "durchschnitt|durchschnittliche|mittlere",
        "time": "zeit|dauer",
    },
    "French": {
        "loss": "perte|co\u00fbt",
        "step": "pas|\u00e9tape|etape",
        "epoch": "\u00e9poque|epoque",
        "iteration": "it\u00e9ration",
        "train": "entra\u00eenement|entrainement|apprentissage",
        "test": "essai",
        "accuracy": "pr\u00e9cision|exactitude",
        "learning rate": "taux d'apprentissage|taux d\u2019apprentissage",
        "reward": "r\u00e9compense|recompense",
        "episode": "\u00e9pisode",
        "mean": "moyenne|moyen",
        "time": "temps|dur\u00e9e",
    },
    "Spanish": {
        "loss": "p\u00e9rdida|perdida",
        "step": "paso",
        "epoch": "\u00e9poca|epoca",
        "iteration": "iteraci\u00f3n|iteracion",
        "train": "entrenamiento|entreno",
        "validation": "validaci\u00f3n|validacion",
        "test": "prueba",
        "accuracy": "precisi\u00f3n|precision|exactitud",
        "learning rate": "tasa de aprendizaje",
        "reward": "recompensa",
        "episode": "episodio",
        "mean": "promedio|media",
        "time": "tiempo",
    },
    "Portuguese": {
        "loss": "perda",
        "step": "passo",
        "epoch": "\u00e9poca|epoca",
        "iteration": "itera\u00e7\u00e3o|iteracao",
        "train": "treino|treinamento",
        "validation": "valida\u00e7\u00e3o|validacao",
        "test": "teste",
        "accuracy": "acur\u00e1cia|acuracia|precis\u00e3o",
        "learning rate": "taxa de aprendizado|taxa de aprendizagem",
        "reward": "recompensa",
        "episode": "epis\u00f3dio|episodio",
        "mean": "m\u00e9dia|media",
        "time": "tempo",
    },
    "Italian": {
        "loss": "perdita",
        "step": "passo",
        "epoch": "epoca",
        "iteration": "iterazione",
        "train": "addestramento|allenamento",
        "validation": "validazione",
        "accuracy": "accuratezza|precisione",
        "reward": "ricompensa",
        "episode": "episodio",
        "mean": "media",
        "time": "tempo",
    },
    "Romanian": {
        "loss": "pierdere|pierderea",
        "step": "pas|pasul",
        "epoch": "epoca|epoc\u0103",
        "train": "antrenare|antrenament",
        "validation": "validare",
        "test": "testare",
        "accuracy": "acurate\u021be|acuratete|precizie",
        "mean": "medie",
        "time": "timp",
    },
    "Polish": {
        "loss": "strata",
        "step": "krok",
        "epoch": "epoka",
        "iteration": "iteracja",
        "train": "trening|treningowa|ucz\u0105ca",
        "validation": "walidacja|walidacyjna",
        "test": "testowa",
        "accuracy": "dok\u0142adno\u015b\u0107|dokladnosc",
        "reward": "nagroda",
        "time": "czas",
    },
    "Turkish": {
        "loss": "kay\u0131p|kayip|kayb\u0131",
        "step": "ad\u0131m|adim",
        "epoch": "d\u00f6nem",
        "train": "e\u011fitim|egitim",
        "validation": "do\u011frulama|dogrulama",
        "accuracy": "do\u011fruluk|dogruluk|ba\u015far\u0131m",
        "reward": "\u00f6d\u00fcl",
        "episode": "b\u00f6l\u00fcm",
        "mean": "ortalama",
        "time": "s\u00fcre|sure",
    },
    "Russian": {
        "loss": "\u043f\u043e\u0442\u0435\u0440\u0438|\u043f\u043e\u0442\u0435\u0440\u044f|\u043b\u043e\u0441\u0441|\u043e\u0448\u0438\u0431\u043a\u0430",
        "step": "\u0448\u0430\u0433",
        "epoch": "\u044d\u043f\u043e\u0445\u0430",
        "iteration": "\u0438\u0442\u0435\u0440\u0430\u0446\u0438\u044f",
        "train": "\u043e\u0431\u0443\u0447\u0435\u043d\u0438\u0435|\u043e\u0431\u0443\u0447\u0435\u043d\u0438\u044f|\u043e\u0431\u0443\u0447\u0435\u043d\u0438\u0438|\u0442\u0440\u0435\u0439\u043d",
        "validation": "\u0432\u0430\u043b\u0438\u0434\u0430\u0446\u0438\u044f|\u0432\u0430\u043b\u0438\u0434\u0430\u0446\u0438\u0438",
        "test": "\u0442\u0435\u0441\u0442",
        "accuracy": "\u0442\u043e\u0447\u043d\u043e\u0441\u0442\u044c",
        "learning rate": "\u0441\u043a\u043e\u0440\u043e\u0441\u0442\u044c \u043e\u0431\u0443\u0447\u0435\u043d\u0438\u044f|\u0442\u0435\u043c\u043f \u043e\u0431\u0443\u0447\u0435\u043d\u0438\u044f",
        "reward": "\u043d\u0430\u0433\u0440\u0430\u0434\u0430|\u0432\u043e\u0437\u043d\u0430\u0433\u0440\u0430\u0436\u0434\u0435\u043d\u0438\u0435",
        "episode": "\u044d\u043f\u0438\u0437\u043e\u0434",
        "mean": "\u0441\u0440\u0435\u0434\u043d\u0438\u0439|\u0441\u0440\u0435\u0434\u043d\u044f\u044f|\u0441\u0440\u0435\u0434\u043d\u0435\u0435",
        "time": "\u0432\u0440\u0435\u043c\u044f",
    },
    "Chinese": {
        "loss": "\u635f\u5931|\u635f\u5931\u503c|\u640d\u5931",
        "step": "\u6b65|\u6b65\u6570|\u6b65\u9aa4|\u6b65\u6578",
        "epoch": "\u8f6e|\u8f6e\u6b21|\u8f6e\u6570|\u5468\u671f|\u8f2a|\u8f2a\u6b21",
        "iteration": "\u8fed\u4ee3|\u8fed\u4ee3\u6b21\u6570",
        "train": "\u8bad\u7ec3|\u8bad\u7ec3\u96c6|\u8a13\u7df4",
        "validation": "\u9a8c\u8bc1|\u9a8c\u8bc1\u96c6|\u9a57\u8b49",
        "test": "\u6d4b\u8bd5|\u6d4b\u8bd5\u96c6|\u6e2c\u8a66",
        "accuracy": "\u51c6\u786e\u7387|\u7cbe\u5ea6|\u6b63\u786e\u7387|\u6e96\u78ba\u7387",
        "learning rate": "\u5b66\u4e60\u7387|\u5b78\u7fd2\u7387",
        "reward": "\u5956\u52b1|\u734e\u52f5",
        "episode": "\u56de\u5408",
        "mean": "\u5e73\u5747",
        "time": "\u8017\u65f6|\u7528\u65f6|\u65f6\u95f4",
    },
    "Japanese": {
        "loss": "\u640d\u5931|\u8aa4\u5dee",
        "step": "\u30b9\u30c6\u30c3\u30d7",
        "epoch": "\u30a8\u30dd\u30c3\u30af",
        "iteration": "\u53cd\u5fa9",
        "train": "\u5b66\u7fd2|\u8a13\u7df4",
        "validation": "\u691c\u8a3c",
        "test": "\u30c6\u30b9\u30c8",
        "accuracy": "\u7cbe\u5ea6|\u6b63\u89e3\u7387",
        "learning rate": "\u5b66\u7fd2\u7387",
        "reward": "\u5831\u916c",
        "episode": "\u30a8\u30d4\u30bd\u30fc\u30c9",
        "mean": "\u5e73\u5747",
        "time": "\u6642\u9593",
    },
    "Korean": {
        "loss": "\uc190\uc2e4",
        "step": "\uc2a4\ud15d",
        "epoch": "\uc5d0\ud3ed|\uc5d0\ud3ec\ud06c",
        "train": "\ud6c8\ub828|\ud559\uc2b5",
        "validation": "\uac80\uc99d",
        "test": "\ud14c\uc2a4\ud2b8",
        "accuracy": "\uc815\ud655\ub3c4",
        "learning rate": "\ud559\uc2b5\ub960",
        "reward": "\ubcf4\uc0c1",
        "episode": "\uc5d0\ud53c\uc18c\ub4dc",
        "mean": "\ud3c9\uade0",
        "time": "\uc2dc\uac04",
    },
}
"""Language -> English word -> its words there, the first forms that logs use. Common knowledge."""

_LINKS = r"(?:\s+(?:de|del|della|di|do|da|du|la|l|d|na|on|\u043d\u0430|\u043f\u0440\u0438)\b[\s'\u2019]*)?"
_LOSS_FIRST = re.compile(rf"\bloss{_LINKS}\s*\b(train|validation|test)\b", re.IGNORECASE)
"""`loss of training`, as most of these languages say it."""


def _listed(words: str) -> list[str]:
    return words.split("|")


@cache
def _pattern(language: str) -> re.Pattern[str]:
    """Return what finds the words of a language, the longest first."""
    words = [w for listed in _LANGUAGES[language].values() for w in _listed(listed)]
    words.sort(key=len, reverse=True)
    either = "|".join(map(re.escape, words))
    # Scripts without blanks between words know no word boundary.
    return re.compile(either if ord(words[0][0]) > 0x3000 else rf"(?<!\w)(?:{either})(?!\w)", re.I)


@cache
def _meanings(language: str) -> Mapping[str, str]:
    return {w: english for english, listed in _LANGUAGES[language].items() for w in _listed(listed)}


@cache
def _value_pattern(language: str, what: str) -> re.Pattern[str] | None:
    """Return what finds a language's words for a value with a number behind, None without any."""
    words = [w for w in _listed(_LANGUAGES[language].get(what, "")) if w not in _ENGLISH]
    if not any(words):
        return None
    either = "|".join(map(re.escape, words))
    bounded = either if ord(either[0]) > 0x3000 else rf"(?<![^\W_])(?:{either})(?![^\W_])"
    return re.compile(rf"(?:{bounded})[^\d\n]{{0,30}}\d|(?:{bounded})[^\n\d]{{0,80}}[,;\t]", re.I)


def _translate(line: str, language: str) -> str:
    meanings = _meanings(language)
    spaced = ord(next(iter(meanings))[0]) > 0x3000

    def english(found: re.Match[str]) -> str:
        # Some letters are another's capital to a pattern, and not to `lower`: left as they are.
        word = meanings.get(found[0].lower(), found[0])
        return f" {word} " if spaced else word

    text = _pattern(language).sub(english, line.replace("_", " ") if spaced else line)
    return _LOSS_FIRST.sub(r"\1 loss", text)


def translator(lines: Sequence[str]) -> Callable[[str], str] | None:
    """Return what puts a line of a log into English, None for a log that needs it not.

    Args:
        lines: Its first lines.

    Cost: a search for each language in the lines; a word-by-word substitution for each line then.

    Example:
        >>> said = translator(["pas 0 | perte 3.6", "pas 1 | perte 3.1", "pas 2 | perte 2.9"])
        >>> said("pas 3 | perte 2.5 | perte de validation 2.7")
        'step 3 | loss 2.5 | validation loss 2.7'
        >>> translator(["step 0 | loss 3.6"] * 3) is None
        True
    """
    language = _language_of(lines, _FEWEST_LINES)
    return None if language is None else lambda line: _translate(line, language)


def header_in_english(names: Sequence[str]) -> list[str]:
    """Return the names of the columns of a table in English; as they are without a loss in them.

    Example:
        >>> header_in_english(["\u00e9poca", "perda", "perda_valida\u00e7\u00e3o"])
        ['epoch', 'loss', 'validation loss']
        >>> header_in_english(["epoch", "loss"])
        ['epoch', 'loss']
    """
    # As the reader of text sees it: each name with a number behind it.
    said = [re.sub(r"[_\-]+", " ", name) for name in names]
    language = _language_of([f"{name} 0" for name in said], 1)
    return (
        list(names)
        if language is None
        else [" ".join(_translate(n, language).split()) for n in said]
    )


def _language_of(lines: Sequence[str], least: int) -> str | None:
    """Return the language whose word for the loss stands on so many lines, None without one.

    Without a word for the loss, one for a reward or an accuracy, beside what counts the rows.
    """
    text = "\n".join(lines).lower()
    for what in _DECIDING:
        found = _said_in(what, lines, least, text)
        if found is not None:
            return found
    return None


def _said_in(what: str, lines: Sequence[str], least: int, text: str) -> str | None:
    """Return the language whose word for a value stands on so many lines, None without one.

    A word that may be English (`strata`) needs another of its language beside it.
    """
    found: list[tuple[int, int, str]] = []
    for language, words in _LANGUAGES.items():
        # A plain search first: hardly any text has one of the words.
        if not any(word in text for word in _listed(words.get(what, "")) if word):
            continue
        pattern = _value_pattern(language, what)
        hits = [line for line in lines if pattern.search(line)] if pattern is not None else []
        if len(hits) < least:
            continue
        said = [w.lower() for line in lines[:200] for w in _pattern(language).findall(line)]
        others = [w for w in said if w not in _listed(words[what])]
        counts = {w for name in _COUNTS for w in _listed(words.get(name, ""))}
        if what != "loss" and counts.isdisjoint(others) and not any(map(_COUNT.search, lines)):
            continue
        if others or what == "reward" or not all(map(str.isascii, said)):
            found.append((len(hits), len(others), language))
    return max(found)[2] if found else None
