"""Who may ask: nothing is answered without the token, under another name, or to anything but GET."""

from pathlib import Path

import pytest

from trimtab.cli import main

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from starlette.testclient import TestClient  # noqa: E402 - only where the extra is

from trimtab.serve.app import make_app  # noqa: E402

TOKEN = "a-long-enough-token-0"


def client(tmp_path: Path, **how: object) -> TestClient:
    # no lifespan: no process is started, and no run is read
    return TestClient(make_app([tmp_path], **how), base_url="http://127.0.0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["/", "/api/runs", "/api/curves", "/events", "/run/x", "/static/list.js", "/nothing"]
)
def test_without_the_token_nothing_is_answered(tmp_path: Path, path: str) -> None:
    asked = client(tmp_path, token=TOKEN)
    assert asked.get(path).status_code == 401
    assert asked.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert asked.get(path, params={"token": "wrong"}).status_code == 401


def test_the_token_is_given_once_and_leaves_the_address(tmp_path: Path) -> None:
    asked = client(tmp_path, token=TOKEN)
    first = asked.get("/", params={"token": TOKEN, "find": "x"}, follow_redirects=False)
    assert first.headers["location"] == "/?find=x"
    assert "httponly" in first.headers["set-cookie"].lower()
    assert asked.get("/api/runs").json() == {"runs": [], "left_out": ""}
    fresh = client(tmp_path, token=TOKEN)
    assert fresh.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_another_host_name_and_another_method_are_refused(tmp_path: Path) -> None:
    asked = client(tmp_path, hosts=("127.0.0.1", "localhost"))
    assert asked.get("/api/runs").status_code == 200
    assert asked.get("/api/runs", headers={"Host": "evil.example"}).status_code == 421
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert asked.request(method, "/api/runs").status_code == 405


def test_every_answer_has_a_policy_that_allows_no_foreign_source(tmp_path: Path) -> None:
    for path in ("/", "/overlay", "/run/none", "/api/runs", "/static/uplot.min.js"):
        headers = client(tmp_path).get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/run/..%2f..%2fetc%2fpasswd", "/static/..%2fapp.py", "/static/app.py"]
)
def test_no_path_leads_out(tmp_path: Path, path: str) -> None:
    assert client(tmp_path).get(path).status_code == 404


def test_bad_numbers_are_taken_as_not_given(tmp_path: Path) -> None:
    query = {"runs": "a,b", "from": "nan", "to": "1e999", "width": "-7", "smooth": "x", "by": "y"}
    assert client(tmp_path).get("/api/curves", params=query).status_code == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "give --token"),
        (["--host", "0.0.0.0", "--token", "short"], "at least 16"),
        (["--port", "70000"], "expected 0 to 65535"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such/folder"]) == 2
    assert "not there" in capsys.readouterr().err
