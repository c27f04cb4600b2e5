import re

import pytest

from benchmarks.peers.table import PEERS
from tools.detection_page import DETECT, NOISE, PAGE, replace_block


def test_a_block_is_replaced_and_the_rest_stays() -> None:
    page = f"a\n<!-- {NOISE} -->\n```\nold\n```\nb\n\n```\nother\n```\n"
    made = replace_block(page, NOISE, "\nnew \\1  \nlines\n")
    assert made == f"a\n<!-- {NOISE} -->\n```\nnew \\1\nlines\n```\nb\n\n```\nother\n```\n"
    with pytest.raises(ValueError, match="0 blocks"):
        replace_block(page, DETECT, "x")


def test_the_page_has_a_line_for_every_system() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for command in (NOISE, DETECT):
        (block,) = re.findall(rf"<!-- {re.escape(command)} -->\n```\n(.*?)^```$", page, re.S | re.M)
        for name in ("trimtab", *(p.name for p in PEERS if "update_norm" not in p.needs)):
            assert f"\n{name} " in block, (command, name)
