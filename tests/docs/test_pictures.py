"""The pictures of the documentation.

A session that fetches nothing, and clear words without a browser.
"""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import docs


def test_the_session_fetches_nothing_and_says_what_the_terminal_says(tmp_path: Path) -> None:
    svg_path, text_path = docs.write_session(tmp_path)
    svg, text = svg_path.read_text(encoding="utf-8"), text_path.read_text(encoding="utf-8")
    assert svg.count("http") == 1  # the name space
    assert "@font-face" not in svg
    assert "url(http" not in svg
    drawn = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    for words in ("$ trimtab inspect tr8-104b.log", "CRITICAL", "roll back further"):
        assert words in text
        assert words in drawn
    assert str(tmp_path.parent) not in svg + text


def test_an_address_left_in_the_session_is_an_error() -> None:
    with pytest.raises(docs.PictureError, match=r"ask the network for https://fonts\.example/a"):
        docs.without_requests('<svg><image href="https://fonts.example/a"/></svg>')


def test_a_missing_browser_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(docs.PictureError, match="apt-get install chromium"):
        docs.write_screenshots(tmp_path, tmp_path)
