import pytest


@pytest.fixture(autouse=True)
def _a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who applies a rollback says why (tests/cli/test_reason.py)."""
    monkeypatch.setenv("TRIMTAB_REASON", "a test")
