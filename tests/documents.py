"""What the pages of the documentation hold: blocks of code, command lines, files; and a folder to try them in."""

import contextlib
import re
import shlex
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import graft

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
OPENING = re.compile(r"( *)(`{3,})(\w*) *(?:\{.*\})?\n")
FILE_NAME = re.compile(r"`([\w./]+)`[^`]*:?$")
NOT_RUN = re.compile(r"<!-- not run: (\S.+) -->$")


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int  # of its first line of code
    language: str
    before: str  # the line before it that is not empty
    code: str

    @property
    def file(self) -> str | None:
        """Returns the name of the file that the page calls it, as in "`my_method.py`:"."""
        match = FILE_NAME.match(self.before)
        return match[1] if match and match[1].endswith((".py", ".toml")) else None

    @property
    def reason(self) -> str | None:
        """Returns why it is not run, where the page says so."""
        match = NOT_RUN.match(self.before)
        return match[1] if match else None


def page_id(path):
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def blocks(page, language=None):
    """Returns the blocks of code of a page, those of a list or a tab without their indent."""
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    parsed: list[Block] = []
    before, number = "", 0
    while number < len(lines):
        opening = OPENING.match(lines[number])
        if opening:
            indent, fence, name = opening.groups()
            start = number + 1
            number = next(
                end for end in range(start, len(lines)) if lines[end].strip() == fence and lines[end].startswith(indent)
            )
            code = "".join(line.removeprefix(indent) for line in lines[start:number])
            parsed.append(Block(page, start + 1, name, before, code))
        before = lines[number].strip() or before
        number += 1
    return [block for block in parsed if language is None or block.language == language]


@dataclass(frozen=True)
class Command:
    """A command line of a page."""

    page: Path
    line: int
    words: tuple[str, ...]  # without `graft`

    def __str__(self):
        return shlex.join(["graft", *self.words])


def commands(page):
    """Returns the command lines in a page's blocks of code that call graft, without their comments."""
    lines = []
    for block in blocks(page):
        for number, line in enumerate(block.code.replace("\\\n", " \0").splitlines(), block.line):
            text = line.replace("\0", "").strip().removeprefix("$ ")
            if text.startswith("graft ") and block.reason is None:
                lines.append(Command(page, number, tuple(shlex.split(text, comments=True)[1:])))
    return lines


def inline_commands(page):
    """Returns the command lines that a page mentions in its text."""
    texts = re.findall(r"`(graft [a-z][a-z-]*(?: [^`]*)?)`", page.read_text(encoding="utf-8"))
    return [Command(page, 0, tuple(shlex.split(text, comments=True)[1:])) for text in texts]


# A folder in which the files and runs lie that pages speak of.

METHOD = '''
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from graft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedSoft(FedAvg):
    """FedAvg under another name."""

    mu: Annotated[float, Ge(0)] = 0.1  # not used
'''
MODULE = """
from torch import nn
from torch_geometric.nn import GraphConv


class Net(nn.Module):
    def __init__(self, features, classes, width):
        super().__init__()
        self.hidden, self.head = GraphConv(features, width), nn.Linear(width, classes)

    def forward(self, x, edge_index):
        return self.head(self.hidden(x, edge_index).relu())
"""
SEEDS = {"alpha": 1, "beta": 2, "gamma": 3, "new": 4, "alpha-new": 5}  # folders with tables


def write_tables(folder, seed, nodes=40):
    """Write two small tables, accounts and payments, with labels."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    frauds = ["yes" if fraud else "no" for fraud in random.random(nodes) < 0.4]
    rows = [f"n{node},{random.normal():.3f},{random.normal():.3f},{frauds[node]}" for node in range(nodes)]
    (folder / "accounts.csv").write_text("\n".join(["id,balance,turnover,fraud", *rows]) + "\n")
    links = [f"n{first},n{second}" for first, second in random.integers(nodes, size=(4 * nodes, 2)) if first != second]
    (folder / "payments.csv").write_text("\n".join(["sender,receiver", *links]) + "\n")


def write_graph(path, seed, nodes=40):
    """Write a small graph with the same features and classes."""
    random = np.random.default_rng(seed)
    features, labels = random.normal(size=(nodes, 2)).astype("float32"), random.integers(2, size=nodes)
    names = dict(feature_names=["balance", "turnover"], class_names=["no", "yes"])
    np.savez(path, x=features, edges=random.integers(nodes, size=(2, 4 * nodes)), y=labels, **names)


def make_world(folder):
    """Fill a folder with what pages take to be there."""
    for name, seed in SEEDS.items():
        write_tables(folder / name, seed)
    write_graph(folder / "gamma.npz", seed=3)
    (folder / "my_method.py").write_text(METHOD)
    (folder / "my_model.py").write_text(MODULE)
    (folder / "experiment.toml").write_text('method = "fedprox"\ndataset = "digits"\nclients = 3\nrounds = 2\n')


class Stopped(Exception):
    """Ends a run before its time."""


def make_run(directory, method="fedavg", *, interrupted=False, seed=None):
    """Make the directory of a run of three banks in the current folder; of one that was stopped after its first round,
    if asked for."""

    def stop(_):
        if interrupted:
            raise Stopped

    if seed is None:
        seed = zlib.crc32(str(directory).encode())  # no two of them are the same experiment
    settings = dict(graphs=["alpha", "beta", "gamma"], rounds=2, width=8, epochs=1, checkpoint_every=1, seed=seed)
    with contextlib.suppress(Stopped):
        graft.run(method, out=directory, callbacks=[stop], **settings)
