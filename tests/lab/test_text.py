"""Real text: where it comes from, how it is split, what is refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ConfigError
from trimtab.lab.text import MIN_VALIDATION_BYTES, load_text, split_text


def _pieces(num_pieces: int, size_bytes: int) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    return {f"folder/file-{i}.txt": rng.bytes(size_bytes) for i in range(num_pieces)}


def test_default_text_is_the_library_without_its_tests() -> None:
    text = load_text()
    corpus = text.train.tobytes() + text.validation.tobytes()
    assert b"class JSONDecoder(object):" in corpus
    assert b"class TestCase(object):" in corpus  # unittest/case.py is library, not test
    assert b"class DictTest(unittest.TestCase):" not in corpus  # test/test_dict.py
    assert text.validation.size >= MIN_VALIDATION_BYTES
    assert 8 < text.train.size / text.validation.size < 64


def test_hashes_are_those_of_the_bytes_and_repeat() -> None:
    first, second = load_text(), load_text()
    assert first.train_sha256 == hashlib.sha256(first.train.tobytes()).hexdigest()
    assert first.validation_sha256 == hashlib.sha256(first.validation.tobytes()).hexdigest()
    assert first.train_sha256 == second.train_sha256
    assert first.validation_sha256 == second.validation_sha256


def test_every_piece_is_on_exactly_one_side() -> None:
    pieces = _pieces(64, 20_000)
    text = split_text(pieces, source="test")
    train, validation = text.train.tobytes(), text.validation.tobytes()
    assert all((content in train) != (content in validation) for content in pieces.values())
    assert len(train) + len(validation) == sum(map(len, pieces.values()))


def test_a_file_stays_on_its_side_as_others_come() -> None:
    pieces = _pieces(128, 20_000)
    few = split_text(dict(list(pieces.items())[:96]), source="test").validation.tobytes()
    many = split_text(pieces, source="test").validation.tobytes()
    stayed = [content for content in pieces.values() if content in few]
    assert len(stayed) >= 2
    assert all(content in many for content in stayed)


def test_split_does_not_depend_on_the_order_of_listing() -> None:
    pieces = _pieces(40, 20_000)
    turned = dict(reversed(pieces.items()))
    forward, backward = split_text(pieces, source="test"), split_text(turned, source="test")
    assert forward.train_sha256 == backward.train_sha256
    for corpus in (forward.train.tobytes(), forward.validation.tobytes()):
        there = [name for name in sorted(pieces) if pieces[name] in corpus]
        assert len(there) >= 2
        assert corpus == b"".join(pieces[name] for name in there)


def test_few_pieces_still_give_64_kb_to_validation() -> None:
    text = split_text(_pieces(5, 60_000), source="test")
    assert text.validation.size == 120_000  # two files: one is less than 64 kB
    assert text.train.size == 180_000


def test_single_file_is_split_by_blocks(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    content = np.random.default_rng(0).bytes(2_000_000)
    path.write_bytes(content)
    text = load_text(path)
    assert text.validation.size >= MIN_VALIDATION_BYTES
    assert text.train.size + text.validation.size == len(content)
    block = text.validation.tobytes()[: 64 * 1024]
    assert content.index(block) % (64 * 1024) == 0
    assert block not in text.train.tobytes()


def test_directory_leaves_out_hidden_binary_and_linked_files(tmp_path: Path) -> None:
    for i in range(8):
        (tmp_path / f"{i}.md").write_bytes(b"plain text %d\n" % i * 3000)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"hidden")
    (tmp_path / "weights.bin").write_bytes(b"binary\0binary")
    (tmp_path / "again.md").symlink_to(tmp_path / "0.md")
    text = load_text(tmp_path)
    corpus = text.train.tobytes() + text.validation.tobytes()
    assert b"hidden" not in corpus
    assert b"binary" not in corpus
    assert corpus.count(b"plain text 0\n") == 3000


def test_max_bytes_bounds_what_is_read(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02d}.txt").write_bytes(b"%02d" % i * 20_000)
    text = load_text(tmp_path, max_bytes=250_000)
    assert text.train.size + text.validation.size == 250_000


@pytest.mark.parametrize("make", ["missing", "empty", "small"])
def test_unusable_text_is_refused_with_what_to_do(tmp_path: Path, make: str) -> None:
    path = tmp_path / "text"
    if make == "empty":
        path.mkdir()
    if make == "small":
        path.write_bytes(b"too short")
    with pytest.raises(ConfigError, match="give a") as caught:
        load_text(path)
    assert str(path) in str(caught.value)
