"""Every script in examples/ runs as a user would run it, from another folder, and shows what it says it shows."""

import ast
import multiprocessing
import os
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

import graft
from graft.testing import check_method

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def run_script(path, folder, output):
    """Runs a script as `python path` would in that folder; what it prints goes to a file."""
    torch.set_num_threads(1)  # all of them run at once
    os.chdir(folder)
    with output.open("w") as file, redirect_stdout(file):
        runpy.run_path(str(path), run_name="__main__")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each of them prints; each has a process of its own, forked from one that has imported PyTorch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["graft.engines.loopback", "graft.experiments.run", "tests.test_examples"])
    folder, outputs = tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("outputs")
    files = {path: outputs / path.stem for path in EXAMPLES}
    running = {path: context.Process(target=run_script, args=(path, folder, output)) for path, output in files.items()}
    for process in running.values():
        process.start()
    for path, process in running.items():
        process.join(timeout=600)
        assert process.exitcode == 0, f"{path.stem}: {files[path].read_text()}"
    assert not list(folder.iterdir()), "an example leaves files behind"
    return {path.stem: output.read_text() for path, output in files.items()}


def numbers(pattern, text):
    """The numbers in the groups of every match, line by line."""
    matches = re.findall(pattern, text)
    assert matches, text
    return [[float(number) for number in (match if isinstance(match, tuple) else (match,))] for match in matches]


def test_there_are_five_examples():
    assert [path.stem for path in EXAMPLES] == ["own_graph", "own_method", "own_model", "peer_method", "study"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_import_public_names_only(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "graft":
            assert node.module == "graft"
            assert {alias.name for alias in node.names} <= set(graft.__all__)
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("graft.")]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "graft":
            assert node.attr in graft.__all__


def test_own_graph_has_its_nodes_shared_out_and_its_clients_gain(printed):
    clients = numbers(r"client \d: (\d+) nodes", printed["own_graph"])
    assert sum(nodes for (nodes,) in clients) == 1797
    ((together, alone),) = numbers(r"mean: ([\d.]+) % together, ([\d.]+) % alone", printed["own_graph"])
    assert together > alone + 2


def test_own_model_trains_beside_others(printed):
    assert re.findall(r"client \d has (\w+)", printed["own_model"]) == ["own", "gcn", "sage", "own"]
    for (accuracy,) in numbers(r"([\d.]+) %", printed["own_model"]):
        assert accuracy > 40  # ten classes
    assert "client 0 keeps 8650 weights" in printed["own_model"]


def test_own_method_resumes_to_the_same_result(printed):
    assert "trimmedmean on digits, 5 clients" in printed["own_method"]
    assert "stopped after round 7 and resumed: the same result" in printed["own_method"]


def test_peers_learn_more_from_more_neighbours(printed):
    rows = numbers(r"hears (\d) others, test accuracy ([\d.]+) %, ([\d.]+) MB", printed["peer_method"])
    hears, accuracies, sent = zip(*rows, strict=True)
    assert hears == (0, 2, 5)
    assert accuracies[0] + 2 < accuracies[1] < accuracies[2]
    assert sent[0] == 0
    assert sent[2] == pytest.approx(sent[1] * 5 / 2, abs=0.2)


def test_study_lies_between_training_alone_and_all_data_in_one_place(printed):
    rows = re.findall(r"^(\w+) +([\d.]+) ± ([\d.]+) +([+-][\d.]+) against local$", printed["study"], re.MULTILINE)
    accuracies = {method: float(accuracy) for method, accuracy, _, _ in rows}
    assert list(accuracies) == ["local", "fedavg", "scaffold", "centralised"]
    assert accuracies["local"] < accuracies["fedavg"] < accuracies["centralised"]
    assert float(rows[0][3]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_method.py:TrimmedMean", "peer_method.py:Cautious"])
def test_methods_of_examples_keep_the_contract(name):
    check_method(str(EXAMPLES[0].parent / name))
