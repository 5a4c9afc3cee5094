"""The notebooks run from top to bottom, in a folder of their own, and hold no output that could grow old."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import graft

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300  # a cell on a busy machine


def output_of(notebook):
    """Returns everything that the cells of a notebook have printed or shown as text."""
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            texts.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
    return "\n".join(texts)


def execute(path, folder, monkeypatch):
    """Run a notebook with this Python, in a folder."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JUPYTER_PATH", str(Path(sys.prefix) / "share" / "jupyter"))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}})
    return client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_code_and_no_output(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    names = {name for cell in cells for name in re.findall(r"\bgraft\.(\w+)", cell.source)}
    assert "run" in names
    assert names <= set(graft.__all__)


@pytest.mark.slow
def test_researcher_sees_which_method_is_better(tmp_path, monkeypatch):
    notebook = execute(FOLDER / "compare_methods.ipynb", tmp_path, monkeypatch)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    text = output_of(notebook)
    assert "Result(fedavg on" in text
    assert "Sweep(20 runs, 4 rows x 1 columns)" in text
    assert r"\begin{tabular}" in text


@pytest.mark.slow  # docs/tutorial.md, which is run anyway, tells the same story
def test_analyst_gets_predictions_and_a_verdict_for_each_bank(tmp_path, monkeypatch):
    text = output_of(execute(FOLDER / "bank_to_predictions.ipynb", tmp_path, monkeypatch))
    assert "edges to unknown nodes were dropped" in text
    assert "No problem was found." in text
    assert "p(yes)" in text
    assert "model.safetensors" in text
