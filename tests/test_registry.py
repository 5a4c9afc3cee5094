"""Names of the tables, of files, of modules and of installed packages, and what is said of those that do not exist."""

import os
import pickle
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import graft
from graft.data import DATASETS, parse_dataset
from graft.data.datasets import load
from graft.errors import InputError
from graft.experiments.experiment import Experiment, check_names, make_experiment
from graft.experiments.make_method import make_method, name_of
from graft.federation import TOPOLOGIES
from graft.federation.method import Method
from graft.methods import METHOD_FAMILIES, METHODS, PLUGS
from graft.methods.fedavg import FedAvg
from graft.methods.fedtad import FedTAD
from graft.models import MODELS, build_model
from graft.registry import Registry, parse_reference
from tests.toy import gap, same

OWN = '''
"""FedSoft. A paper of our own."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
import torch
from torch import nn

from graft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedSoft(FedAvg):
    """FedAvg with a softer step."""

    softness: Annotated[float, Ge(0)] = 0.5  # how much softer

    def loss(self, fleet, weights, received):
        return super().loss(fleet, weights, received) * (1 - self.softness / 10)


class Net(nn.Module):
    """A network of one layer, of nodes alone."""

    def __init__(self, features, classes, width=64):
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x).relu())


def load_ring(nodes=30):
    """A ring of nodes in three classes."""
    from torch_geometric.data import Data

    there = torch.arange(nodes)
    edges = torch.stack([there, (there + 1) % nodes])
    x = torch.eye(3)[there % 3] + 0.1 * torch.randn(nodes, 3, generator=torch.Generator().manual_seed(0))
    return Data(x, edges, y=there % 3)


not_a_class = 5
'''
TINY = dict(dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=2, rounds=3, width=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder with a file of our own in it, in which the test works."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Tables.


def without_torch(code):
    """Whether code runs without importing PyTorch, in a process of its own."""
    code = f"import sys\n{code}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1] == "False"


def test_going_over_names_imports_nothing_and_an_entry_does():
    names = (
        "from graft.methods import METHODS, PLUGS\nfrom graft.models import MODELS\nfrom graft.data import DATASETS\n"
        "for table in (METHODS, PLUGS, MODELS, DATASETS):\n    sorted(table), len(table), 'fedavg' in table\n"
        "METHODS.check('fedprox'), METHODS.source('fedprox').fields['mu']"
    )
    assert without_torch(names)
    assert not without_torch(f"{names}\nMETHODS['fedavg']")


@pytest.mark.parametrize("table", [METHODS, PLUGS, MODELS, DATASETS, TOPOLOGIES], ids=lambda table: table.noun)
def test_every_name_of_a_table_can_be_imported_and_named_again(table):
    assert len(table) == len(set(table)) > 0
    for name in table.targets:
        assert callable(table[name])
        if hasattr(table[name], "__module__") and hasattr(table[name], "__name__"):
            assert table.label_of(table[name]) == name


def test_every_method_is_in_one_family():
    names = [name for family in METHOD_FAMILIES.values() for name in family.methods]
    assert sorted(names) == sorted(METHODS.targets)
    assert len(names) == len(set(names))


def test_a_table_acts_as_a_dictionary():
    assert METHODS["fedavg"] is METHODS.get("fedavg") is FedAvg
    assert dict(METHODS.items())["fedtad"] is FedTAD
    assert METHODS.get("fedavgg") is None
    assert "fedavgg" not in METHODS
    with pytest.raises(KeyError):
        METHODS["fedavgg"]
    with pytest.raises(InputError, match=r"Unknown method 'fedavgg' .did you mean 'fedavg'.*: there are adafgl, "):
        METHODS["fedavgg"]


def test_classes_of_a_notebook_can_be_added_to_a_table_and_taken_out():
    class Mine(FedAvg):
        """Mine."""

    METHODS["mine"] = Mine
    try:
        assert make_method("mine", {}) == Mine()
        assert name_of(Mine()) == "mine"
    finally:
        del METHODS["mine"]
    assert "mine" not in METHODS


# Files, modules, entry points.


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("my.py:FedSoft", "my.py"),
        ("some folder/my.py:FedSoft", "some folder/my.py"),
        ("package.module:FedSoft", "package.module"),
        ("fedavg", None),
        ("my.py", None),
        ("my.txt:FedSoft", "my.txt"),
        ("louvain:resolution=20", None),
        (":FedSoft", None),
        ("my.py:", None),
        ("my.py:Fed Soft", None),
    ],
)
def test_references_are_told_from_names(name, where):
    reference = parse_reference(name)
    assert (reference and reference.where) == where


def test_a_class_of_a_file_is_one_class_however_it_is_called(folder, monkeypatch):
    (folder / "deep").mkdir()
    kind = METHODS["own.py:FedSoft"]
    assert issubclass(kind, Method)
    assert METHODS[f"{folder}/own.py:FedSoft"] is kind
    monkeypatch.chdir(folder / "deep")
    assert METHODS["../own.py:FedSoft"] is kind
    (folder / "deep" / "own.py").write_text(OWN)
    assert METHODS["own.py:FedSoft"] is not kind  # another file


def test_objects_of_a_file_can_be_sent_to_another_process(tmp_path):
    method = METHODS["own.py:FedSoft"](softness=0.25)
    (tmp_path / "method").write_bytes(pickle.dumps(method))
    code = f"import graft.registry, pickle; print(pickle.load(open({str(tmp_path / 'method')!r}, 'rb')).softness)"
    elsewhere = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert elsewhere.stdout.strip() == "0.25"


def test_a_file_may_import_what_lies_beside_it(folder):
    (folder / "beside_it.py").write_text("from graft.methods.fedavg import FedAvg as Base\n")
    (folder / "uses.py").write_text("from beside_it import Base\n\nclass Mine(Base):\n    pass\n")
    assert METHODS["uses.py:Mine"].__mro__[1] is FedAvg


def test_a_module_on_the_path_is_found(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "some_package").mkdir()
    (folder / "some_package" / "__init__.py").write_text("")
    (folder / "some_package" / "soft.py").write_text(OWN)
    assert METHODS["some_package.soft:FedSoft"].__name__ == "FedSoft"
    assert make_experiment({"method": "some_package.soft:FedSoft"}).label == "fedsoft"


def test_entry_points_of_installed_packages_are_names_of_the_table(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    points = [
        EntryPoint("fedsoft", "own:FedSoft", "graft.methods"),
        EntryPoint("fedavg", "own:FedSoft", "graft.methods"),  # a name that is taken
        EntryPoint("broken", "own:Nothing", "graft.methods"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in points if p.group == group])
    table = Registry("method", METHODS.targets, group="graft.methods", base=METHODS.base)
    assert set(table) - set(METHODS.targets) == {"fedsoft", "broken"}
    assert table["fedsoft"].__name__ == "FedSoft"
    assert table.label_of(table["fedsoft"]) == table.label("fedsoft") == "fedsoft"
    assert table["fedavg"] is FedAvg
    with pytest.raises(InputError, match="Method 'broken' cannot be loaded: own has no 'Nothing'"):
        table["broken"]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("1 / 0\nclass A:\n    pass\n", "A", ["ZeroDivisionError: division by zero", "bad.py, line 1"]),
        ("class A:\n  def f(:\n", "A", ["bad.py, line 2"]),
        ("import no_such_thing\nclass A: pass", "A", ["No module named 'no_such_thing'", "bad.py, line 1"]),
        ("import sys\nsys.exit(3)\nclass A: pass", "A", ["SystemExit", "bad.py, line 2"]),
        ("class Aa:\n    pass\n", "A", ["has no 'A'", "did you mean 'Aa'"]),
        ("class A:\n    pass\n", "A", ["A in bad.py does not inherit from graft.Method"]),
        ("A = 5", "A", ["does not inherit from graft.Method"]),
        ("def A():\n    pass\n", "A", ["does not inherit from graft.Method"]),
        ("from graft import *\n", "A", ["has no 'A'"]),
        ("from graft import Method\nclass A(Method):\n    mu: float = 1.0\n", "A", ["declares mu", "@dataclass"]),
    ],
)
def test_a_file_that_is_no_method_is_one_sentence(text, name, words, folder):
    (folder / "bad.py").write_text(text)
    with pytest.raises(InputError) as caught:
        METHODS[f"bad.py:{name}"]
    for word in words:
        assert word in str(caught.value), caught.value
    assert "\n" not in str(caught.value)


def test_what_does_not_exist_is_one_sentence():
    with pytest.raises(InputError, match=r"cannot be loaded: there is no file gone.py"):
        METHODS["gone.py:FedSoft"]
    with pytest.raises(InputError, match="there is no module 'no_such_package'"):
        METHODS["no_such_package.module:FedSoft"]
    with pytest.raises(InputError, match=r"there is no module 'graft.methods.gone'"):
        METHODS["graft.methods.gone:FedSoft"]
    with pytest.raises(InputError, match=r"no plug: FedSoft in own.py does not inherit from graft.Plug"):
        PLUGS["own.py:FedSoft"]
    for table in (MODELS, DATASETS):
        with pytest.raises(InputError, match="not_a_class cannot be called"):
            table["own.py:not_a_class"]


def test_a_mistake_in_a_file_is_found_before_it_is_imported(folder):
    (folder / "noisy.py").write_text("raise SystemExit('imported')\nclass FedSoft: pass\n")
    METHODS.check("noisy.py:FedSoft")
    with pytest.raises(InputError, match=r"has no 'FedSfot' .did you mean 'FedSoft'"):
        METHODS.check("noisy.py:FedSfot")
    with pytest.raises(InputError, match=r"Unknown setting 'hardness' of method 'own.py:FedSoft': there are softness"):
        check_names(Experiment(method="own.py:FedSoft", settings={"hardness": 1}))
    check_names(Experiment(method="own.py:FedSoft", settings={"softness": 1}))


# Labels.


def test_labels_are_short_and_can_be_a_folder(folder):
    for name in ("own.py:FedSoft", f"{folder}/own.py:FedSoft", "some.package:FedSoft"):
        assert METHODS.label(name) == "fedsoft"
    assert METHODS.label("odd name/it's.py:FedAvg") == "it_s.fedavg"  # 'fedavg' alone is another method
    assert METHODS.label("package.module:FedAvg") == "module.fedavg"
    assert Experiment(method="own.py:FedSoft", plug="fedtad").label == "fedsoft+fedtad"
    assert "/" not in METHODS.label("a/b")


def test_the_experiment_keeps_absolute_paths_and_leaves_names_alone(folder):
    values = {"method": "own.py:FedSoft", "models": "gcn,own.py:Net", "dataset": "own.py:load_ring:nodes=40:lcc"}
    experiment = make_experiment(values)
    assert experiment.method == f"{folder}/own.py:FedSoft"
    assert experiment.models == ["gcn", f"{folder}/own.py:Net"]
    assert experiment.dataset == f"{folder}/own.py:load_ring:nodes=40:lcc"
    named = make_experiment({"method": "fedavg", "models": "gcn,gat", "dataset": "cora:lcc"})
    assert (named.method, named.models, named.dataset) == ("fedavg", "gcn,gat", "cora:lcc")


# Runs.


def test_a_method_of_a_file_runs_as_the_same_class_in_the_package_would():
    soft = graft.run("own.py:FedSoft", settings={"softness": 0.0}, **TINY)
    plain = graft.run("fedavg", **TINY)
    assert same(soft.server, plain.server)
    assert soft.summary["method"] == "fedsoft"
    hard = graft.run("own.py:FedSoft", settings={"softness": 5.0}, engine="loopback", device="cpu", **TINY)
    assert gap(hard.server, graft.run("own.py:FedSoft", settings={"softness": 5.0}, **TINY).server) < 1e-6
    assert gap(hard.server, plain.server) > 1e-3


def test_a_run_of_a_file_is_resumed_from_another_folder(folder, monkeypatch):
    def crash(record):
        if record["round"] == 2:
            raise RuntimeError("stop")

    settings = {**TINY, "models": "own.py:Net", "dataset": "own.py:load_ring:nodes=48"}
    unbroken = graft.run("own.py:FedSoft", **settings)
    with pytest.raises(RuntimeError, match="stop"):
        graft.run("own.py:FedSoft", out="run", checkpoint_every=1, callbacks=[crash], **settings)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    (folder / "own.py").write_text(OWN.replace("self.softness / 10", "self.softness / 5"))
    with pytest.raises(InputError, match="has changed since this run began"):
        graft.resume("../run")
    (folder / "own.py").write_text(OWN)
    resumed = graft.resume("../run")
    assert same(resumed.server, unbroken.server)
    assert resumed.summary["dataset"] == "load_ring"
    assert [row["model"] for row in resumed.summary["per_client"]] == ["net", "net"]


def test_a_method_object_of_a_file_can_be_resumed_by_its_name(folder):
    def crash(record):
        if record["round"] == 2:
            raise RuntimeError("stop")

    method = METHODS["own.py:FedSoft"](softness=3.0)
    with pytest.raises(RuntimeError, match="stop"):
        graft.run(method, out="run", checkpoint_every=1, callbacks=[crash], **TINY)
    assert f'method = "{folder}/own.py:FedSoft"' in (folder / "run" / "experiment.toml").read_text()
    resumed = graft.resume("run")
    assert same(resumed.server, graft.run(method, **TINY).server)
    assert not same(resumed.server, graft.run("own.py:FedSoft", **TINY).server)


def test_a_method_that_no_name_leads_to_must_be_given_again():
    class Local(FedAvg):
        """Defined here alone."""

    def crash(_):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        graft.run(Local(), out="run", checkpoint_every=1, callbacks=[crash], **TINY)
    with pytest.raises(InputError, match=r"given its method in Python: resume it there"):
        graft.resume("run")
    assert same(graft.resume("run", method=Local()).server, graft.run("fedavg", **TINY).server)


def test_a_plug_of_a_file_is_added_to_a_method_and_resumed(folder):
    (folder / "halving.py").write_text(
        "from dataclasses import dataclass\nfrom graft import Plug, map_tree\n\n\n@dataclass(frozen=True)\n"
        "class Halving(Plug):\n    share: float = 0.5  # of the mean that is kept\n\n"
        "    def after_aggregation(self, server, clients, replies):\n"
        "        server.state.model = map_tree(lambda leaf: leaf * self.share, server.state.model)\n"
    )

    def crash(record):
        if record["round"] == 2:
            raise RuntimeError("stop")

    half, whole = (
        graft.run("fedavg", plug="halving.py:Halving", settings={"share": share}, **TINY) for share in (0.5, 1.0)
    )
    plain = graft.run("fedavg", **TINY)
    assert half.summary["method"] == "fedavg+halving"
    assert same(whole.server.model, plain.server.model)
    assert not same(half.server.model, plain.server.model)
    method = make_method("fedavg", {"share": 0.5}, "halving.py:Halving")
    with pytest.raises(RuntimeError, match="stop"):
        graft.run(method, out="run", checkpoint_every=1, callbacks=[crash], **TINY)
    assert same(graft.resume("run").server, half.server)


def test_settings_beside_a_method_object_are_refused():
    with pytest.raises(InputError, match=r"settings has mu, but the method was given as an object.*FedProx\(...\)"):
        graft.run(METHODS["fedprox"](), settings={"mu": 0.5}, **TINY)
    with pytest.raises(InputError, match="settings has mu"):
        graft.run(METHODS["fedprox"](), plug="fedtad", settings={"mu": 0.5}, **TINY)
    with pytest.raises(InputError, match="Unknown setting 'mu' of method 'fedavg'"):
        graft.run("fedavg", settings={"mu": 0.5}, **TINY)


def test_classes_in_the_place_of_objects_are_refused():
    with pytest.raises(InputError, match=r"method is the class FedAvg; give an instance, as FedAvg\(\)"):
        graft.run(FedAvg, **TINY)
    with pytest.raises(InputError, match=r"A model is a name, an nn.Module or a graft.Model, not the class int"):
        graft.run("fedavg", models=[int], **TINY)


# Models and datasets.


def test_a_module_of_a_file_starts_the_same_every_time_and_from_the_seed():
    first, again, other = (build_model("own.py:Net", 6, 3, seed=seed, width=8) for seed in (0, 0, 1))
    weights = [model.start(None) for model in (first, again, other)]
    assert same(weights[0], weights[1])
    assert not same(weights[0], weights[2])
    assert weights[0].first.weight.shape == (8, 6)  # it was handed the width that it has a parameter for
    assert first.name == "net"


def test_what_a_model_or_a_dataset_does_wrong_is_one_sentence(folder):
    (folder / "wrong.py").write_text(
        "def model(features):\n    pass\n\ndef nothing(features, classes):\n    pass\n\n"
        "def fails(size=1):\n    return [][size]\n\ndef number():\n    return 5\n"
    )
    with pytest.raises(
        InputError, match=r"Model 'wrong.py:model' cannot be made for 6 features and 3 classes: TypeError"
    ):
        build_model("wrong.py:model", 6, 3)
    with pytest.raises(
        InputError, match=r"'wrong.py:nothing' is neither a graft.Model nor an nn.Module but a NoneType"
    ):
        build_model("wrong.py:nothing", 6, 3)
    with pytest.raises(InputError, match=r"Dataset 'wrong.py:fails' cannot be made: IndexError.*wrong.py, line 8"):
        load("wrong.py:fails")
    with pytest.raises(InputError, match=r"cannot be made: TypeError: .*'width'"):
        load("wrong.py:fails:width=3")
    with pytest.raises(InputError, match=r"is a int; it should be a PyG Data or a graft.Graph"):
        load("wrong.py:number")
    with pytest.raises(InputError, match="Unknown model 'gcm': there are gcn, gat"):
        build_model("gcm", 6, 3)


def test_a_dataset_of_a_file_takes_options():
    assert load("own.py:load_ring").nodes == 30
    assert load("own.py:load_ring:nodes=12").nodes == 12
    assert load("own.py:load_ring:nodes=12:lcc").name == "load_ring"


def test_the_text_of_a_dataset_is_taken_apart(folder):
    (folder / "data.npz").touch()
    (folder / "my:folder").mkdir()
    assert parse_dataset("Cora:lcc") == ("cora", "", "lcc")
    assert parse_dataset("synthetic:nodes=5,degree=2:lcc") == ("synthetic", "nodes=5,degree=2", "lcc")
    assert parse_dataset("data.npz") == ("data.npz", "", "")
    assert parse_dataset("my:folder") == ("my:folder", "", "")
    (folder / "cora").mkdir()
    assert parse_dataset("cora") == ("cora", "", "")
    assert make_experiment({"dataset": "cora"}).dataset == "cora"  # the name, whatever folders there are
    assert make_experiment({"dataset": "data.npz"}).dataset == str(folder / "data.npz")
    assert parse_dataset("own.py:load_ring:nodes=5") == ("own.py:load_ring", "nodes=5", "")
    with pytest.raises(InputError, match=r"no dataset or file 'korra'.*did you mean 'cora'"):
        parse_dataset("korra:lcc")


def test_the_working_folder_is_not_left_on_the_path_twice():
    METHODS["own.py:FedSoft"]
    METHODS["own.py:FedSoft"]
    assert sys.path.count(os.fspath(Path.cwd())) <= 1
