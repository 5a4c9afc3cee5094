"""Every block of Python and of TOML on every page is run or read; one that is not says why."""

import textwrap
import tomllib
from importlib import import_module
from inspect import signature
from types import ModuleType

import pytest
import yaml

import graft
import graft.testing
from graft.data import datasets
from tests.documents import PAGES, blocks, make_world, page_id

MOST_ROUNDS, MOST_CLIENTS = 2, 5
MOST = {"seeds": 2, "final_seeds": 1, "trials": 2, "jobs": 1}
LARGE = ("cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics", "ogbn-arxiv")
SMALL = {name: f"synthetic:nodes={150 + i},degree=6,classes=3,features=8" for i, name in enumerate(LARGE)}
# What a page's snippets take to be there, as code that is run before them in the page's folder.
GRAPHS = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv

def make_data(seed, nodes=60):
    random = torch.Generator().manual_seed(seed)
    edges = torch.randint(nodes, (2, 4 * nodes), generator=random)
    features = torch.randn(nodes, 8, generator=random)
    return Data(x=features, edge_index=edges, y=torch.randint(2, (nodes,), generator=random))

class MyNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = GraphConv(8, 2)
    def forward(self, x, edge_index):
        return self.layer(x, edge_index)

my_pyg_data, data1, data2, new_data = map(make_data, range(4))
"""
SETUP = {
    "README.md": GRAPHS,
    "docs/add_a_method.md": """
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from graft import squared_distance
from graft.methods.fedavg import FedAvg
""",
    "docs/predict.md": """
import graft, torch
_run = graft.run("fedavg", "digits", clients=2, rounds=1, width=8)
_run.client(0).export("exported")
import sys; sys.path.insert(0, "exported")
x, edge_index = torch.rand(10, 64), torch.tensor([[0, 1], [1, 0]])
""",
    "docs/tutorial.md": """
from pathlib import Path
from graft.cli.example import example
example("banks", Path("banks"), 0.3)
""",
}


@pytest.fixture
def quick(monkeypatch):
    """Runs are short and small, whatever a snippet asks for."""
    for name in ("run", "sweep", "tune"):
        module = import_module(f"graft.{graft._MODULE_OF[name]}")
        monkeypatch.setattr(module, name, shortened(getattr(module, name)))
    load = datasets.load
    monkeypatch.setattr(datasets, "load", lambda source, *arguments: load(smaller(source), *arguments))
    monkeypatch.setattr("graft.testing.CLAIMS", graft.testing.CLAIMS[:1])


def shortened(function):
    """Returns a function with less to do: numbers up to a limit, and small data in the place of large ones."""
    most = {name: value for name, value in MOST.items() if name in signature(function).parameters}
    most["rounds"] = MOST_ROUNDS

    def short(*arguments, **settings):
        arguments = [smaller(entry) for entry in arguments]
        for name in ("dataset", "datasets"):
            if name in settings:
                settings[name] = smaller(settings[name])
        limits = most | ({"clients": MOST_CLIENTS} if "clients" in settings else {})
        for name, limit in limits.items():
            value = settings.get(name, limit)
            settings[name] = min(value, limit) if isinstance(value, int) else value
        return function(*arguments, **settings)

    return short


def smaller(dataset):
    """Returns a small dataset for a large one, by name."""
    if isinstance(dataset, list | tuple):
        return [smaller(entry) for entry in dataset]
    return SMALL[dataset] if isinstance(dataset, str) and dataset in SMALL else dataset


def run_snippets(page, folder, setup=""):
    """Run the snippets of a page one after the other in a folder, as one script; those that are files are written
    there and imported."""
    module = ModuleType("snippets")
    exec(compile(setup, "setup", "exec"), module.__dict__)
    for block in blocks(page, "python"):
        if block.reason:
            continue
        if block.file:
            (folder / block.file).write_text(block.code)
        lines = "\n" * (block.line - 1) + textwrap.dedent(block.code)  # so that an error tells the line of the page
        exec(compile(lines, page_id(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=page_id)
@pytest.mark.usefixtures("quick")
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    make_world(tmp_path)
    run_snippets(page, tmp_path, SETUP.get(page_id(page), ""))


def test_a_snippet_that_fails_is_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```python\nnumber = 1\n```\n\n- list\n\n    ```python\n    print(numbr)\n    ```\n")
    with pytest.raises(NameError, match="numbr"):
        run_snippets(page, tmp_path)
    page.write_text("Text\n\n<!-- not run: it needs a GPU -->\n```python\nprint(numbr)\n```\n")
    run_snippets(page, tmp_path)
    page.write_text("Text\n\n<!-- not run: -->\n```python\nprint(numbr)\n```\n")
    with pytest.raises(NameError, match="numbr"):
        run_snippets(page, tmp_path)


def test_few_snippets_are_left_out_and_each_has_a_reason():
    left_out = [f"{page_id(page)}:{block.line}" for page in PAGES for block in blocks(page, "python") if block.reason]
    assert len(left_out) <= 3, left_out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=page_id)
def test_toml_can_be_read(page):
    for block in blocks(page, "toml"):
        tomllib.loads(block.code)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=page_id)
def test_yaml_can_be_read(page):
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block.code), dict)


def test_every_block_has_a_language_that_is_tested_or_is_plain():
    tested = {"python", "toml", "yaml"}
    plain = {"", "text", "bash", "sh", "csv", "json", "latex", "bibtex"}  # commands in them are tests of their own
    others = [
        f"{page_id(page)}:{block.line} {block.language}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in tested | plain
    ]
    assert others == []
