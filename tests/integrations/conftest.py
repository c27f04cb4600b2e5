"""One thread: models this small are faster so, and do not wait for busy cores."""

from collections.abc import Iterator

import pytest

from trimtab.integrations import packages

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No version was warned of yet in this process."""
    monkeypatch.setattr(packages, "WARNED", set())
