"""Every command line on every page: names and flags exist, and it is run, on less data and for fewer rounds."""

import contextlib
import re
import shlex
import shutil
import tomllib
from itertools import product
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from graft.cli import app
from tests.documents import PAGES, ROOT, Command, blocks, commands, inline_commands, make_run, make_world, page_id

SMALL = "synthetic:nodes=150,degree=6,classes=3,features=8"
LARGE = {"cora", "citeseer", "pubmed", "photo", "computers", "cs", "physics", "ogbn-arxiv"}
MOST_CLIENTS = 3
# What is added to a command so that it takes a second at most; of an option that is given twice the last counts.
QUICK = {
    "run": "--rounds 2 --width 8 --epochs 1 --device cpu --overwrite",
    "sweep": "--rounds 1 --width 8 --epochs 1 --device cpu --jobs 1 --seeds 2",
    "tune": "--rounds 2 --width 8 --epochs 1 --device cpu --jobs 1 --trials 2 --seeds 1 --final-seeds 1",
    "watch": "--once",
    "predict": "--overwrite",
    "export": "--overwrite",
    "partition": "--seed 1",
    "shard": "--overwrite",
    "example": "--size 0.05",
}
TRAINING = ("run", "sweep", "tune", "partition", "shard")  # commands whose data and clients are made small
READING = ("predict", "export", "report", "resume", "watch", "compare")  # commands that read a run directory
ELSEWHERE = {  # pages whose commands have tests of their own
    "docs/tutorial.md": "tests/test_tutorial.py",
    "docs/federations.md": "tests/test_federations_page.py",
}
# Commands that are first run as they stand, up to the function that begins to train; a study only so.
TRAIN = {
    "run": ("graft.cli.run.run_all",),
    "reproduce": ("graft.cli.reproduce.run_study", "graft.cli.tournament.run_events"),
}
ONLY_CHECKED = ("reproduce",)
# They wait for others, start processes, or need a file that stands on the page above them.
ONLY_PARSED = ("serve", "join", "peer", "trial", "flower")
OF_CLUSTERS = ("--engine", "--address", "--workers", "--gpus-per-worker", "--cpus-per-run", "--gpus-per-run")


def parse(command):
    """Parse a command line as Typer would, without running it; raises where that fails."""
    name, *arguments = ["1" if word.isupper() else word for word in command.words]  # CLIENTS stands for a number
    parsed = typer.main.get_command(app).commands[name]
    if arguments:  # without any it may be a command that is only mentioned
        with contextlib.suppress(typer.Exit):  # of --help
            parsed.make_context(name, arguments)


def without_cluster(words):
    """Returns a command line that runs in this process: a cluster takes seconds to start, and has tests of its own."""
    words = list(words)
    for option in OF_CLUSTERS if "ray" in words else ():
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return words


def quickened(words):
    """Returns a command line with less to do."""
    name, *rest = without_cluster(words)
    if name in TRAINING:
        for position, word in enumerate(rest):
            names = word.split(",")
            if word.startswith("synthetic:") or (set(names) <= LARGE and len(names) == 1):
                rest[position] = SMALL
            elif set(names) <= LARGE:
                rest[position] = "digits"
            if word == "--clients":
                rest[position + 1] = ",".join(
                    str(min(int(number), MOST_CLIENTS)) for number in rest[position + 1].split(",")
                )
    return [name, *rest, *shlex.split(QUICK.get(name, ""))]


def provide_runs(words):
    """Make the runs that a command reads and that are not there."""
    name, *rest = words
    if name not in READING:
        return
    parsed = typer.main.get_command(app).commands[name].make_context(name, list(rest))
    arguments = [entry.name for entry in parsed.command.params if entry.param_type_name == "argument"]
    for value in map(parsed.params.get, arguments):
        for path in map(Path, value if isinstance(value, list | tuple) else [value]):
            if name == "resume":
                shutil.rmtree(path, ignore_errors=True)
                make_run(path, interrupted=True)
            elif name == "compare" and not path.exists():
                for method, seed in product(("fedavg", "local"), range(2)):
                    make_run(path / f"{method}-{seed}", method, seed=seed)
            elif not path.exists():
                make_run(path)


def provide_ca(words):
    """Make the CA that a command signs with and that is not there."""
    pytest.importorskip("cryptography")
    folder = words[words.index("--ca") + 1] if "--ca" in words else None
    if folder is not None and not Path(folder).exists():
        assert CliRunner().invoke(app, ["keys", "ca", folder]).exit_code == 0


def run_commands(lines, patch):
    """Run command lines one after the other in the current folder; first as they stand but for the training, then in
    earnest with less to do."""
    for command in lines:
        name = command.words[0]
        if name in ONLY_PARSED:
            parse(command)
            continue
        if name == "keys":
            provide_ca(command.words)
        if "ray" in command.words:
            parse(command)
        provide_runs(command.words)
        if name in TRAIN:
            with patch.context() as without_training:
                for trains in TRAIN[name]:
                    without_training.setattr(trains, lambda *_: None)
                words = ["cpu" if word == "cuda" else word for word in command.words]
                invoke(command, [*words, *(["--overwrite"] if name == "run" else [])])
        if name not in ONLY_CHECKED:
            invoke(command, quickened(command.words))


def invoke(command, words):
    result = CliRunner().invoke(app, words)
    if result.exit_code:
        error = repr(result.exception) if result.exception else ""
        pytest.fail(f"{page_id(command.page)}:{command.line} {command}\n{result.output}{error}", pytrace=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    return folder


TESTED = [page for page in PAGES if commands(page) and page_id(page) not in ELSEWHERE]


@pytest.mark.parametrize("page", TESTED, ids=page_id)
def test_commands_run(page, world, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("graft.testing.CLAIMS", ())  # `graft check-method` is tested by itself
    for block in blocks(page):
        if block.file:
            Path(block.file).write_text(block.code)
    run_commands(commands(page), monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_the_text_parse(page):
    for command in inline_commands(page):
        try:
            parse(command)
        except Exception as error:  # Typer's own, or a KeyError for a command that is not there
            partly = type(error).__name__ == "MissingParameter" or str(error).endswith("requires an argument.")
            if not partly:  # a command may be mentioned without all that it needs
                pytest.fail(f"{command}: {error!r}")


@pytest.mark.parametrize(
    "line",
    ["train", "run --no-such-flag 3", "run --clients some", "resume a b", "serve a.toml --no-such", "join --as a"],
)
def test_a_wrong_command_is_seen(line):
    with pytest.raises(Exception):  # noqa: B017, PT011
        parse(Command(ROOT / "README.md", 0, tuple(shlex.split(line))))


@pytest.mark.parametrize(
    "line",
    [
        "run --method fedavgg",
        "run --method fedprox --set nu=3",
        "run --dataset corra",
        "run --against fedavgg",
        "reproduce no-such-study",
        "list methods fedavgg",
    ],
)
def test_a_wrong_name_is_seen(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pytest.fail.Exception):
        run_commands([Command(ROOT / "README.md", 0, tuple(shlex.split(line)))], monkeypatch)


def test_other_programs_are_called_with_what_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for page in PAGES:
        for block in blocks(page):
            lines = "\n" + block.code
            assert set(re.findall(r"\nmake ([\w-]+)", lines)) <= targets, page
            assert all((ROOT / path).is_file() for path in re.findall(r"\npython ([\w/]+\.py)", lines)), page
        text = page.read_text(encoding="utf-8")
        named = [name for names in re.findall(r"graft-fgl\[([\w,]+)\]", text) for name in names.split(",")]
        assert set(named) <= extras, page
