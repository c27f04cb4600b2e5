"""One thread: models this small are faster so, and do not wait for busy cores."""

import os
import warnings
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

if os.environ.get("TRIMTAB_TEST_DEVICE", "cpu") != "cpu":
    # What is compared bit for bit must not hang on the order of atomic additions.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)

    @pytest.fixture(autouse=True)
    def certified(monkeypatch: pytest.MonkeyPatch) -> None:
        """Let runs act on the accelerator, and keep quiet of kernels that are not deterministic."""
        monkeypatch.setattr("trimtab.guard.guard.why_uncertified", lambda *_: "")
        warnings.filterwarnings("ignore", ".*non-deterministic algorithm")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
