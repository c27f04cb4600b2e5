"""A notebook that analyzes a log runs, and shows the result."""

import json
import os
import sys
from pathlib import Path

import pytest

import trimtab

CELLS = (
    "import trimtab; trimtab.analyze('train.log').verdict",
    "found = trimtab.analyze('train.log'); found",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's own packages
def test_analyze_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name in ("HOME", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    paths = [str(Path(trimtab.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p))
    # The kernel runs in the interpreter of this test, whatever kernels the machine has.
    spec = tmp_path / "jupyter_data_dir" / "kernels" / "here"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "here", "language": "python"})
    )
    loss = [3 - s / 1000 + (s * 7919 % 13) / 1000 for s in range(300)]
    loss[200:204] = [9.0] * 4
    rows = (json.dumps({"step": s, "loss": v}) + "\n" for s, v in enumerate(loss))
    (tmp_path / "train.log").write_text("".join(rows))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="here", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    first, second = (cell["outputs"][-1]["data"] for cell in notebook["cells"])
    assert first["text/plain"] == "'incident'"
    assert "incident" in second["text/html"]
    assert "data:image/svg+xml" in second["text/html"]
