"""Exported folders: used in a process without Graft they predict the same, and nothing else is left behind."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import graft
from graft.experiments.export import formats
from graft.experiments.verdicts import write_verdicts
from tests.experiments.export.test_networks import NATIVE, SETTINGS, Normed, unseen_graph

FILES = {"MODEL_CARD.md", "config.json", "model.py", "model.safetensors", "preparation.json"}

# Uses every exported folder in a process where Graft cannot be imported.
ALONE = """
import json, sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

sys.modules["graft"] = None
import torch
from safetensors.torch import load_file, save_file

root = Path(sys.argv[1])
inputs = {name: load_file(root / f"{name}.safetensors") for name in ("plain", "weighted")}
logits = {}
for folder in sorted(path.parent for path in root.glob("*/model.py")):
    spec = spec_from_file_location("model", folder / "model.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.load()
    for name, tensors in inputs.items():
        extra = [tensors["edge_weight"]] if "edge_weight" in tensors and folder.name.split("-")[0] != "own" else []
        with torch.no_grad():
            logits[f"{folder.name}/{name}"] = model(tensors["x"], tensors["edge_index"], *extra)
assert not [name for name in sys.modules if name.startswith("graft.")]
save_file(logits, root / "logits.safetensors")
"""

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, features, classes, width=5):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(features, width), nn.BatchNorm1d(width), nn.Linear(width, classes)

    def forward(self, x, edge_index):
        hidden = self.norm(self.inner(x)).relu()
        return self.outer(hidden + hidden.index_add(0, edge_index[1], hidden[edge_index[0]]))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Folders of every native model, shallow and deep, and of an own module with buffers; with the models."""
    root = tmp_path_factory.mktemp("exported")
    (root / "my_model.py").write_text(NET)
    cases = {
        f"{name}-{depth}-{head}": (f"{name}{depth}", head)
        for name in NATIVE
        for depth, head in ((2, "linear"), (4, "conv"))
    }
    cases |= {"own": (f"{root / 'my_model.py'}:Net", "linear"), "own-pyg": ("pyg:GIN3", "linear")}
    models = {}
    for folder, (name, head) in cases.items():
        models[folder] = graft.run("fedavg", models=name, head=head, feature_norm=0, **SETTINGS).client(1)
        models[folder].export(root / folder)
    for folder, name in {"mean": "gat", "mean-own": f"{root / 'my_model.py'}:Net"}.items():
        run = graft.run("fedgkc", models=name, settings={"answer": "mean"}, feature_norm=0, **SETTINGS)
        models[folder] = run.client(1)
        models[folder].export(root / folder)
    return root, models


@pytest.mark.slow
def test_exported_models_predict_the_same_without_graft(exported):
    root, models = exported
    graphs = {name: unseen_graph(31, weighted=name == "weighted") for name in ("plain", "weighted")}
    for name, (_, (x, edge_index, edge_weight)) in graphs.items():
        weights = {} if edge_weight is None else {"edge_weight": edge_weight}
        save_file({"x": x, "edge_index": edge_index.contiguous(), **weights}, root / f"{name}.safetensors")
    script = root / "alone.py"
    script.write_text(ALONE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(script), str(root)], capture_output=True, text=True, env=environment, cwd=root
    )
    assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    logits = load_file(root / "logits.safetensors")
    assert len(logits) == 2 * len(models)
    for folder, model in models.items():
        for name, (graph, _) in graphs.items():
            with pytest.warns(RuntimeWarning) if "own" in folder and name == "weighted" else no_warning():
                expected = model.predict(graph).probabilities
            given = logits[f"{folder}/{name}"].softmax(1).numpy()
            assert np.abs(given - expected).max() < 1e-6, (folder, name)
    other = models["gcn-2-linear"].predict(graphs["weighted"][0]).probabilities
    assert np.abs(other - logits["gcn-2-linear/plain"].softmax(1).numpy()).max() > 1e-4  # weights do matter


class no_warning:  # noqa: N801
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_a_folder_holds_what_it_should(exported):
    root, _ = exported
    assert {path.name for path in (root / "gat-4-conv").iterdir()} == FILES
    config = json.loads((root / "gat-4-conv" / "config.json").read_text())
    assert config["model"] == dict(features=6, classes=3, depth=4, width=8, dropout=0.5, head="conv", heads=4)
    assert config["classes"] == ["0", "1", "2"]
    assert "graft" not in (root / "gat-4-conv" / "model.py").read_text().lower()
    assert not list(root.glob(".*"))  # no draft is left


def test_two_models_that_predict_together_have_a_folder_each(exported):
    root, _ = exported
    assert {path.name for path in (root / "mean").iterdir()} == FILES - {"model.safetensors"} | {"own", "copilot"}
    for part, kind in {"own": "gat", "copilot": "tag"}.items():
        folder = root / "mean" / part
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.py", "model.safetensors"}
        assert kind in (folder / "model.py").read_text().lower()
    config = json.loads((root / "mean" / "config.json").read_text())
    assert (config["models"], config["architecture"]) == (["own", "copilot"], "gat and tag")
    assert "# gat and tag of client 1" in (root / "mean" / "MODEL_CARD.md").read_text()


def test_the_card_says_what_the_model_is(exported):
    root, models = exported
    card = (root / "sage-2-linear" / "MODEL_CARD.md").read_text()
    model = models["sage-2-linear"]
    test = model.models.record["per_client"]["test"][1]
    for words in (
        "# sage of client 1",
        "| method | fedavg |",
        f"| round | {model.round} of 2 |",
        "0, 1, 2",
        f"{100 * test:.1f} %",
        "float32 [nodes, 6]",
        "from model import load",
        "`train/model`: weights of a model trained on the client's data",
    ):
        assert words in card


def test_the_card_compares_with_the_most_frequent_class_and_with_training_alone(tmp_path):
    result = graft.run("fedavg", out=tmp_path / "run", **SETTINGS)
    write_verdicts(tmp_path / "run", result.against(graft.run("local", **SETTINGS)), "local")
    graft.load_result(tmp_path / "run").client(1).export(tmp_path / "out")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert re.search(r"Most frequent class: [012], \d+\.\d % of the client's labelled nodes", card)
    assert re.search(r"\* accuracy on test nodes alone \d+\.\d.*, in the federation \d+\.\d", card), card
    (tmp_path / "run" / "verdicts.json").unlink()
    graft.load_result(tmp_path / "run").client(1).export(tmp_path / "out", overwrite=True)
    assert "nodes alone" not in (tmp_path / "out" / "MODEL_CARD.md").read_text()


def test_the_card_says_what_was_told_before_training(tmp_path):
    settings = SETTINGS | {"features": "standard"}
    for scaling, told in (("federated", True), ("local", False)):
        graft.run("fedavg", **settings, scaling=scaling).client(1).export(tmp_path / scaling)
        card = (tmp_path / scaling / "MODEL_CARD.md").read_text()
        assert ("* before training, `moments/means`: mean of every numeric column" in card) == told


def test_own_objects_are_refused_and_their_module_is_offered(tmp_path):
    model = graft.run("fedavg", models=Normed(), **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match=r"given as my_model.py:Net .*\.module\(\) returns it"):
        model.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_file_that_does_not_stand_alone_is_refused(tmp_path):
    (tmp_path / "my_model.py").write_text(NET + "\n\nNOT_COPIED = open(__file__ + '.txt').read()\n")
    (tmp_path / "my_model.py.txt").write_text("beside it")
    model = graft.run("fedavg", models=f"{tmp_path / 'my_model.py'}:Net", **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match=r"The exported model.py cannot be used: .*No such file"):
        model.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["fedlit", "fedproto"])
def test_methods_that_need_more_than_a_model_are_refused(tmp_path, name):
    settings = {"inference": "prototype"} if name == "fedproto" else {}
    model = graft.run(name, settings=settings, **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match=r"fedproto|channels"):
        model.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_kept_unless_it_is_an_export_to_overwrite(tmp_path):
    model = graft.run("fedavg", **SETTINGS).client(0)
    out = tmp_path / "out"
    model.export(out)
    with pytest.raises(graft.InputError, match="exists already"):
        model.export(out)
    (out / "model.py").write_text("changed")
    model.export(out, overwrite=True)
    assert (out / "model.py").read_text() != "changed"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(graft.InputError, match="not an exported model"):
        model.export(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("name", NATIVE)
def test_torchscript_gives_the_same_for_graphs_of_any_size(tmp_path, name):
    model = graft.run("fedavg", models=name, **SETTINGS).client(0)
    model.export(tmp_path / "out", "torchscript")
    loaded = torch.jit.load(tmp_path / "out" / "model.pt")
    for nodes in (7, 40):
        graph, inputs = unseen_graph(nodes, weighted=True)
        assert torch.allclose(loaded(*inputs), model.logits(graph), rtol=1e-5, atol=1e-6)


def test_what_torchscript_cannot_express_is_refused(tmp_path):
    (tmp_path / "my_model.py").write_text(
        "import numpy\n" + NET.replace("hidden +", "hidden * float(numpy.sqrt(x.shape[0])) +")
    )
    model = graft.run("fedavg", models=f"{tmp_path / 'my_model.py'}:Net", **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match=r"cannot be written as TorchScript .* leave --format out"):
        model.export(tmp_path / "out", "torchscript")
    assert not (tmp_path / "out").exists()
    model.export(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "gat4", "pyg:GIN"])
def test_onnx_gives_the_same_for_graphs_of_any_size(tmp_path, name):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = graft.run("fedavg", models=name, **SETTINGS).client(0)
    model.export(tmp_path / "out", "onnx")
    session = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    for nodes in (7, 40):
        graph, inputs = unseen_graph(nodes, weighted=not name.startswith("pyg"))
        names = [entry.name for entry in session.get_inputs()]
        given = {key: tensor.numpy() for key, tensor in zip(names, inputs, strict=False)}
        (logits,) = session.run(None, given)
        assert torch.allclose(torch.from_numpy(logits), model.logits(graph), rtol=1e-5, atol=1e-5)


def test_a_missing_package_for_onnx_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = graft.run("fedavg", **SETTINGS).client(0)
    with pytest.raises(graft.InputError, match=r"needs the package onnxruntime: pip install 'graft-fgl\[onnx\]'"):
        model.export(tmp_path / "out", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_file_that_gives_other_logits_is_not_kept(tmp_path, monkeypatch):
    model = graft.run("fedavg", **SETTINGS).client(0)
    monkeypatch.setattr(formats, "largest_difference", lambda *_: 0.1)
    with pytest.raises(graft.InputError, match=r"it gives other logits, by 0.1"):
        model.export(tmp_path / "out", "torchscript")
    assert not list(tmp_path.iterdir())
