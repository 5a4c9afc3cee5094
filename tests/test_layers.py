"""The order of the layers, as pyproject.toml declares it, holds for the package and fails where an import breaks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graft

PACKAGE = Path(graft.__file__).parent
CONFIG = Path(__file__).parents[1] / "pyproject.toml"
IN_A_FUNCTION = "\n\ndef planted():\n    from {module} import {name}\n\n    return {name}\n"
FOR_TYPE_CHECKERS = "\n\nfrom typing import TYPE_CHECKING as PLANTED\n\nif PLANTED:\n    from {module} import {name}\n"


def lint(parent):
    """Check the package that lies in a folder against the contracts."""
    command = [Path(sys.executable).parent / "lint-imports", "--config", CONFIG, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(parent)}
    done = subprocess.run(command, cwd=parent, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_package_keeps_its_layers():
    status, text = lint(PACKAGE.parent)
    assert status == 0, text
    assert "0 broken" in text


@pytest.mark.parametrize("how", [IN_A_FUNCTION, FOR_TYPE_CHECKERS], ids=["in a function", "for type checkers"])
@pytest.mark.parametrize(
    ("file", "module", "name"),
    [
        ("tensors/trees.py", "graft.federation.method", "Method"),
        ("experiments/run.py", "graft.experiments.studies.study", "Study"),
        ("methods/fedavg.py", "graft.data.graphs", "Graph"),
        ("engines/tasks.py", "ray", "remote"),
        ("engines/wire.py", "flwr", "app"),
        ("engines/wire.py", "zenoh", "Session"),
    ],
    ids=[
        "upwards",
        "a run that knows a study",
        "a method that knows data",
        "a second file that knows Ray",
        "a second file that knows Flower",
        "a second file that knows zenoh",
    ],
)
def test_an_import_against_the_order_is_found_wherever_it_stands(tmp_path, file, module, name, how):
    shutil.copytree(PACKAGE, tmp_path / "graft", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "graft" / file).open("a") as source:
        source.write(how.format(module=module, name=name))
    status, text = lint(tmp_path)
    assert status == 1
    importer = f"graft.{file.removesuffix('.py').replace('/', '.')}"
    assert f"{importer} -> {module}" in text


def test_a_module_that_has_no_place_in_the_order_is_found(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "graft", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "graft" / "utils.py").write_text("")
    status, text = lint(tmp_path)
    assert status == 1
    assert "- graft.utils" in text
