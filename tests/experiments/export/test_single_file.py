"""What model.py of an export holds: one file that needs no other, as somebody would have written it."""

import ast
import subprocess
import sys
from importlib.util import find_spec

import pytest

from graft.experiments.export.modules import NETWORKS
from graft.experiments.export.single_file import import_block
from graft.experiments.export.sources import source_of

OUTSIDE = {"json", "pathlib", "safetensors", "torch", "torch_geometric", "typing"}
RUFF = [sys.executable, "-m", "ruff"]
OPTIONS = ["--isolated", "--no-cache", "--line-length", "120"]


def text_of(architecture):
    return source_of(architecture(features=6, classes=3), "native", {}).text


def ruff_accepts(folder):
    """Returns whether ruff would leave the files of a folder as they are: layout, order of imports, unused names."""
    checks = (["format", "--check", *OPTIONS], ["check", "--select", "E,F,I", *OPTIONS])
    return all(
        subprocess.run([*RUFF, *check, "."], cwd=folder, capture_output=True).returncode == 0 for check in checks
    )


@pytest.mark.parametrize("architecture", NETWORKS, ids=lambda architecture: architecture.kind)
def test_file_imports_nothing_of_graft_and_ends_with_the_class_and_its_loader(architecture):
    text = text_of(architecture)
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= OUTSIDE
    assert "graft" not in text.lower()
    assert ast.get_docstring(tree)
    assert [node.name for node in tree.body[-2:]] == [architecture.__name__, "load"]
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(names) == len(set(names))


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
def test_ruff_would_change_nothing(tmp_path):
    for architecture in NETWORKS:
        (tmp_path / f"{architecture.kind}.py").write_text(text_of(architecture), encoding="utf-8")
    assert ruff_accepts(tmp_path)


@pytest.mark.skipif(find_spec("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import Tensor, nn", "import nn, Tensor"),
        ("import torch\n", "import json\nimport torch\n"),
        ("\n\n\nclass", "\nclass"),
    ],
)
def test_ruff_would_change_a_file_with_other_imports_or_gaps(tmp_path, before, after):
    text = text_of(next(iter(NETWORKS)))
    assert before in text
    (tmp_path / "model.py").write_text(text.replace(before, after), encoding="utf-8")
    assert not ruff_accepts(tmp_path)


def test_imports_are_merged_and_sorted():
    lines = ("from torch import nn", "import torch", "from typing import Any", "from torch_geometric.nn import GCNConv")
    others = ("import json", "from torch.nn import functional", "from torch import Tensor, nn", "from torch import E")
    block = import_block(ast.parse("\n".join(lines + others)).body)
    assert block == (
        "import json\nfrom typing import Any\n\nimport torch\nfrom torch import E, Tensor, nn\n"
        "from torch.nn import functional\nfrom torch_geometric.nn import GCNConv"
    )
