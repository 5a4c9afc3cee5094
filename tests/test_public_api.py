"""The names that other people's code relies on: where they are, what editors see of them, and the pages about them."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

import graft
from graft.errors import InputError
from graft.experiments.experiment import GROUPS, Experiment, make_experiment
from graft.experiments.experiment_files import experiment_text, read_experiment
from graft.experiments.experiment_settings import ExperimentSettings
from graft.experiments.result import Result
from graft.tensors.trees import Tree

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
OBJECTS = ("method", "dataset", "models")  # parameters of `run` of their own, which may be objects


def modules_of_process(code):
    """The modules that a process has imported after some code."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_every_public_name_can_be_imported_and_no_other():
    for name in graft.__all__:
        assert getattr(graft, name) is not None
    assert set(graft.__all__) <= set(dir(graft))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        graft.runn  # noqa: B018


def test_the_names_are_imported_when_they_are_used():
    assert "torch" not in modules_of_process(
        "import graft; dir(graft); graft.METHODS, graft.Experiment, graft.InputError"
    )
    assert "torch" in modules_of_process("import graft; graft.Method")


def test_editors_see_the_names_that_are_imported_lazily():
    tree = ast.parse((ROOT / "src" / "graft" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == {name: f"graft.{module}" for name, module in graft._MODULE_OF.items()}
    assert {*seen, "__version__"} == set(graft.__all__)


def test_the_page_has_one_line_for_every_public_name():
    rows = [row for row in PAGE.splitlines() if row.startswith("| `")]
    names = [re.match(r"\| `(\w+)` \|", row)[1] for row in rows]
    assert len(names) == len(set(names))
    assert {*names, "__version__"} == set(graft.__all__)
    assert all(row.rstrip(" |").endswith(".") for row in rows), [
        row for row in rows if not row.rstrip(" |").endswith(".")
    ]


# Settings.


def test_the_keywords_of_run_are_the_fields_of_an_experiment():
    wanted = {name: kind for name, kind in get_type_hints(Experiment).items() if name not in OBJECTS}
    assert get_type_hints(ExperimentSettings) == wanted
    assert set(wanted) == {field.name for field in fields(Experiment)} - set(OBJECTS)
    assert not ExperimentSettings.__required_keys__


def test_every_setting_has_a_meaning_and_every_number_two_bounds():
    for name, annotation in get_type_hints(Experiment, include_extras=True).items():
        assert get_origin(annotation) is Annotated, name
        kind, *notes = get_args(annotation)
        assert [note for note in notes if isinstance(note, Doc)], name
        if kind is int:
            assert len([note for note in notes if isinstance(note, Ge | Gt | Le | Lt)]) == 2, name


def test_groups_begin_at_fields_in_their_order():
    names = [field.name for field in fields(Experiment)]
    assert sorted(GROUPS, key=names.index) == list(GROUPS)


GOOD = """
import graft
result = graft.run("fedprox", "digits", clients=3, optimizer="sgd", settings={"mu": 0.1}, models=["gcn", "gat"])
accuracy: dict[str, object] = result.accuracy
class Mine(graft.Method):
    def round(self, server: graft.Server, clients: graft.Clients) -> None:
        replies = clients.ask(self.score)
        server.state.correct = graft.weighted_mean(replies.correct, replies.correct)
"""
BAD = """
import graft
graft.run("fedavg", client=3)
graft.run("fedavg", clients="3")
graft.run("fedavg", optimizer="lion")
graft.run(5)
graft.walk("fedavg")
"""


def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong(tmp_path):
    def complaints(text):
        (tmp_path / "user.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(tmp_path / "user.py")]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout

    right = complaints(GOOD)
    assert "Success" in right, right
    wrong = complaints(BAD)
    lines = [int(number) for number in re.findall(r"user\.py:(\d+): error", wrong)]
    assert lines == [3, 4, 5, 6, 7], wrong
    assert 'did you mean "clients"' in wrong


# Files.


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"a": None, "b": 1.5},
        {"a": "\U0001f600 \x00\x1b[31m", "b": float("inf"), "c": [1, 2], "d": True, "e": 2**62},
    ],
)
def test_an_experiment_survives_its_file(settings, tmp_path):
    experiment = Experiment(
        settings=settings, dataset="\U0001f40d/graph.npz", learning_rate=1e-300, models=["gcn", "gat"]
    )
    (tmp_path / "experiment.toml").write_text(experiment_text(experiment))
    again = read_experiment(tmp_path / "experiment.toml")
    assert Experiment(**again) == experiment
    assert Experiment(**(again | {"learning_rate": 1e-299})) != experiment


@pytest.mark.parametrize(
    "values",
    [
        *({name: 10**12} for name in ("clients", "width", "rounds", "epochs", "batches", "threads", "patience")),
        *({name: -1} for name in ("clients", "seed", "threads", "patience", "checkpoint_every", "feature_noise")),
        *({name: 1.5} for name in ("label_sparsity", "edge_noise", "participation", "dropout", "clients")),
        *({name: float("nan")} for name in ("learning_rate", "weight_decay", "dropout", "feature_noise")),
        {"threads": 1025},
        {"memory": "99999999TB"},
        {"seed": 2**63},
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(values):
    (name,) = values
    with pytest.raises(InputError, match=rf"^{name} is .*it must be "):
        make_experiment({"method": "fedavg", **values})
    with pytest.raises(InputError, match=rf"^{name} is .*it must be "):
        Experiment(**values)  # the same without the checks of types


# Results.


def make_result(**changes):
    row = {"client": 0, "model": "gcn", "nodes": 40, "edges": 90, "test": 0.8125, "validation": None}
    summary = {"method": "fedavg", "dataset": "cora", "clients": 3, "best_round": 7, "rounds": 9}
    summary |= {"accuracy": {"test": 0.8125}, "per_client": [row, {**row, "client": 1}]}
    return Result({**summary, **changes}, [], Tree(), {})


def test_a_result_is_one_short_line():
    assert repr(make_result()) == "Result(fedavg on cora, 3 clients, test accuracy 81.2 % at round 7 of 9)"
    assert "not scored" in repr(make_result(accuracy={"test": None}))
    assert "\x1b" not in repr(make_result(dataset="\x1b[31mred"))


def test_a_notebook_shows_a_table_and_no_foreign_html():
    page = make_result(dataset="<script>alert(1)</script>")._repr_html_()
    assert page.count("<tr>") == 3
    assert "<td>81.2 %</td>" in page
    assert "<td>-</td>" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
