"""A TOML file of any shape is read or refused within a second and little memory."""

import time
import tomllib
import tracemalloc

import pytest

from trimtab.bounded_toml import read_toml_text

DOTS = ".".join("a" * 50_000)
BOMBS = {
    "dotted key": f"{DOTS} = 1",
    "spaced dotted key": f"{' . '.join('a' * 20_000)} = 1",
    "dotted table": f"[{DOTS}]",
    "dotted array of tables": f"[[{DOTS}]]",
    "quoted parts": ".".join(['"a"'] * 20_000) + " = 1",
    "dotted in an inline table": "x = { " + DOTS + " = 1 }",
    "many dotted keys": "\n".join(f"a{i}.{'.'.join('a' * 30)} = 1" for i in range(5_000)),
    "after a string with a quote": f'x = "\\""\n{DOTS} = 1',
    "after a long string": f'x = """a"" # \\""" b"""\n{DOTS} = 1',
    "after a comment with a quote": f"# don't\n{DOTS} = 1",
    "nested lists": "x = " + "[" * 50_000,
    "nested tables": "x = " + "{a=" * 50_000,
    "size": "x = 1\n" * 400_000,
    "digits": "x = " + "9" * 100_000,
    "hex digits": "x = 0x" + "f" * 500_000,
    "open strings": 'x = """' + '\\"""' * 25_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_once(name: str) -> None:
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(ValueError, match=r".") as caught:
            read_toml_text(BOMBS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 2.0
    assert peak < 64 << 20
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b.c = 1\n[x.y]\nz = 1.5",
        f'x = "{DOTS}"',
        f"x = '{DOTS}' # {DOTS}\ny = 2",
        f'x = """\n{DOTS}\n"""\ny = """"quoted""""',
        f"x = '''\n{DOTS} '' '''\n# it's",
        "x = [" + "1.5, " * 20_000 + "]",
        'url = "https://a.b.c.d/x#y" # a.b',
    ],
)
def test_other_toml_reads_as_ever(text: str) -> None:
    assert read_toml_text(text) == tomllib.loads(text)
