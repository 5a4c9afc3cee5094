"""The models that were scored are the models that a person gets: kept, written, resumed and used to predict."""

import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import graft
from graft.experiments.run_directory import RunDirectory
from graft.files import seal, unseal
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.tensors.trees import flatten
from tests.damage import essence

DATA = "synthetic:nodes=90,degree=5,classes=3,features=6"
SETTINGS = dict(dataset=DATA, clients=3, width=8, rounds=3, device="cpu", threads=1, partition="random")
# Methods whose defaults would take long, or that classify by more than a model only with other settings.
FIELDS = {
    "fedsage_plus": dict(hidden=1.0, slots=2, latent=8, encoder_width=8, rank=4, generator_epochs=6, shared_epochs=2),
    "fedtgp": dict(server_epochs=5, inference="prototype"),
    "fedproto": dict(inference="prototype"),
}


def accuracies(predictions, graph, mask):
    """Returns the share of a client's nodes in a mask whose class is right, by their numbers in the whole graph."""
    chosen = mask[predictions.ids]
    return float((predictions.classes == graph.y[predictions.ids])[chosen].mean())


def whole_graph(result):
    federation = result.models.federation()
    return (federation.clean or federation).graph


@pytest.mark.parametrize("name", sorted(METHODS))
def test_stored_models_of_the_best_round_score_what_was_scored(tmp_path, name):
    several = METHODS[name].heterogeneous and not METHODS[name].one_model
    models = "gcn,gat,sage" if several else None
    result = graft.run(name, models=models, out=tmp_path / "run", settings=FIELDS.get(name, {}), **SETTINGS)
    opened = graft.load_result(tmp_path / "run")
    graph = whole_graph(opened)
    record = opened.rounds[opened.best_round - 1]
    for client in range(3):
        predictions = opened.client(client).predict()
        for kind in ("validation", "test"):
            score = accuracies(predictions, graph, getattr(graph, kind))
            assert score == pytest.approx(record["per_client"][kind][client], abs=1e-12), (name, client, kind)
        assert (predictions.probabilities == result.client(client).predict().probabilities).all()
    if "test_global" not in result.rounds[-1]:
        with pytest.raises(graft.InputError, match="has no global model"):
            opened.client(0, model="global")
        return
    scores = [accuracies(opened.client(c, model="global").predict(), graph, graph.test) for c in range(3)]
    assert np.mean(scores) == pytest.approx(result.accuracy["test_global"], abs=1e-12)


def test_the_best_round_is_not_the_last_and_neither_are_its_models(tmp_path):
    result = graft.run("local", out=tmp_path / "run", **SETTINGS | {"rounds": 12, "learning_rate": 0.3})
    assert result.best_round < 12  # or this test is about nothing
    graph = whole_graph(result)
    for client in range(3):
        for at, number in (("best", result.best_round), ("last", 12)):
            model = graft.load_result(tmp_path / "run").client(client, at=at)
            assert model.round == number
            expected = result.rounds[number - 1]["per_client"]["test"][client]
            assert accuracies(model.predict(), graph, graph.test) == pytest.approx(expected)
    last, best = (result.client(0, at=at).predict().probabilities for at in ("last", "best"))
    assert not np.allclose(last, best)


def test_own_and_global_models_may_be_of_different_rounds(tmp_path):
    result = graft.run(
        "fedavg", out=tmp_path / "run", **SETTINGS | {"rounds": 15, "optimizer": "adam", "learning_rate": 0.1}
    )
    rounds = {kind: result.client(0, model=kind).round for kind in ("own", "global")}
    validation = [record["validation_global"] for record in result.rounds]
    assert rounds["global"] == 1 + int(np.argmax(validation))
    assert rounds["own"] == result.best_round != rounds["global"]


def test_where_the_global_model_picks_the_round_own_models_are_of_that_round():
    result = graft.run("fedavg", **SETTINGS | {"rounds": 15, "learning_rate": 0.1, "score": "global"})
    assert result.client(0).round == result.client(0, model="global").round == result.best_round


def test_without_validation_nodes_the_last_round_that_was_scored_is_kept():
    graph = graft.load(DATA)
    numbers = np.arange(graph.nodes)
    masks = dict(train=numbers % 2 == 0, validation=np.zeros(graph.nodes, bool), test=numbers % 2 == 1)
    result = graft.run("fedavg", **SETTINGS | {"dataset": replace(graph, **masks), "split": "own", "evaluate_every": 2})
    assert result.client(0).round == result.best_round == 3


def test_a_run_that_was_not_scored_yet_has_no_best_models(tmp_path):
    stop_at(tmp_path / "run", 2, evaluate_every=3)
    assert not (tmp_path / "run" / "best").exists()
    with pytest.raises(graft.InputError, match="none of its rounds was evaluated yet"):
        graft.load_result(tmp_path / "run").client(0)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stop_at(place, number, method="fedavg", **changes):
    def stop(record):
        if record["round"] == number:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        graft.run(method, out=place, callbacks=[stop], **SETTINGS | changes)


@pytest.mark.parametrize("name", ["fedavg", "fedgta", "fedproto", "centralised", "dfed_sst"])
@pytest.mark.parametrize("every", [1, 4])
def test_best_models_of_a_resumed_run_are_those_of_the_unbroken_one_bit_for_bit(tmp_path, name, every):
    settings = {"rounds": 7, "checkpoint_every": every, "settings": FIELDS.get(name, {}), "learning_rate": 0.1}
    settings["memory"] = "1GB"  # or what is free when each of them begins
    graft.run(name, out=tmp_path / "whole", **SETTINGS | settings)
    stop_at(tmp_path / "half", 6, name, **settings)
    graft.resume(tmp_path / "half")
    assert files_of(tmp_path / "half" / "best") == files_of(tmp_path / "whole" / "best")
    graft.run(name, out=tmp_path / "other", **SETTINGS | settings | {"seed": 1})
    assert files_of(tmp_path / "other" / "best") != files_of(tmp_path / "whole" / "best")


def test_a_failed_run_keeps_models_that_are_better_than_those_of_its_checkpoint(tmp_path):
    settings = {"rounds": 9, "checkpoint_every": 4, "optimizer": "adam", "learning_rate": 0.003}
    unbroken = graft.run("local", **SETTINGS | settings)
    scores = [record["validation"] for record in unbroken.rounds]
    best = 1 + int(np.argmax(scores[:7]))
    before = 1 + int(np.argmax(scores[:4]))
    assert best > 4  # so that the checkpoint of round 4 knows nothing of it
    stop_at(tmp_path / "run", 7, "local", **settings)
    opened = graft.load_result(tmp_path / "run")
    assert opened.client(0).round == opened.best_round == best
    assert not opened.finished
    checkpoint = RunDirectory(tmp_path / "run").load()
    assert (checkpoint.round, checkpoint.best["own"].round) == (4, before)
    # Resumed, and stopped again before the better round, the models of the checkpoint are the best ones.
    with pytest.raises(ZeroDivisionError):
        graft.resume(tmp_path / "run", callbacks=[lambda record: 1 / (record["round"] - 5)])
    assert graft.load_result(tmp_path / "run").client(0).round == 1 + int(np.argmax(scores[:5]))
    assert essence(graft.resume(tmp_path / "run")) == essence(unbroken)


class Diverges(FedAvg):
    """A loss that is no number in round 3."""

    def loss(self, fleet, weights, received):
        loss = super().loss(fleet, weights, received)
        return loss / (fleet.round != 3)


def test_a_run_that_diverges_keeps_the_best_models_before(tmp_path):
    with pytest.raises(graft.RunError, match="no longer a finite number"):
        graft.run(Diverges(), out=tmp_path / "run", **SETTINGS | {"rounds": 5})
    model = graft.load_result(tmp_path / "run", method=Diverges()).client(0)
    assert model.round in (1, 2)
    assert np.isfinite(model.predict().probabilities).all()


def test_ctrl_c_keeps_the_best_models(tmp_path):
    def interrupt(record):
        if record["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    result = graft.run("fedavg", out=tmp_path / "run", callbacks=[interrupt], **SETTINGS | {"rounds": 50})
    assert not result.finished
    opened = graft.load_result(tmp_path / "run")
    assert opened.client(2).round == result.client(2).round == opened.best_round <= 3
    assert (opened.client(2).predict().probabilities == result.client(2).predict().probabilities).all()


def test_a_run_goes_on_without_a_worker_that_has_ended_and_leaves_its_best_model(tmp_path, monkeypatch):
    from graft.engines.loopback import Loopback

    engines = []
    begin = Loopback.__init__

    def note(self, setup):
        begin(self, setup)
        engines.append(self)

    monkeypatch.setattr(Loopback, "__init__", note)

    def kill(record):
        if record["round"] == 2:
            engines[0].pipes.workers[1].kill()
            engines[0].pipes.workers[1].join()

    result = graft.run("fedavg", out=tmp_path / "run", engine="loopback", callbacks=[kill], **SETTINGS | {"rounds": 5})
    assert [record["participants"] for record in result.rounds] == [[0, 1, 2]] * 2 + [[0, 2]] * 3
    assert result.rounds[2]["absent"] == {"1": "has ended: its process is gone"}
    assert graft.load_result(tmp_path / "run").client(0).round == result.best_round


@pytest.mark.filterwarnings("ignore::graft.MemoryWarning")
def test_models_are_the_same_where_state_lives_in_files(tmp_path):
    roomy = graft.run("fedavg", **SETTINGS)
    result = graft.run("fedavg", out=tmp_path / "run", memory="1KB", **SETTINGS)
    for client in range(3):
        assert np.allclose(
            result.client(client).predict().probabilities, roomy.client(client).predict().probabilities, atol=1e-5
        )
    assert result.client(0).round == roomy.client(0).round


def test_optimisers_are_not_kept_and_neither_is_what_does_not_predict(tmp_path):
    result = graft.run("moon", out=tmp_path / "run", **SETTINGS)
    assert {"optimizer", "previous"} & set(result.clients[0])
    for models in result.models.best.values():
        assert not [path for path, _ in flatten(models.tree) if "optimizer" in path or "previous" in path]
    size = sum(path.stat().st_size for path in (tmp_path / "run" / "best").glob("*.safetensors"))
    model = sum(leaf.nbytes for _, leaf in flatten(result.client(0).weights))
    assert size < 1.5 * 4 * model + 4000  # three clients and the server


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["models"]["own"].update(round=2000), "is not on record"),
        (lambda content: content["models"]["own"].update(round=0), "round"),
        (lambda content: content["models"].update(other=content["models"]["own"]), "not those of the rounds"),
        (lambda content: content["records"].update(own="0" * 32), "not those of the rounds"),
        (lambda content: content["models"]["own"]["tree"]["files"].clear(), "not those that it lists"),
        (lambda content: content["models"]["own"]["tree"]["files"][0].update(name="../x"), "lies elsewhere"),
        (lambda content: content["origin"].update(models="0" * 32), "The models are not those"),
        (lambda content: content.update(surprise=1), "surprise"),
        (lambda content: content.update(format="graft-best-9"), "format graft-best-9 of another version"),
    ],
)
def test_forged_best_models_are_refused(tmp_path, change, words):
    graft.run("fedavg", out=tmp_path / "run", **SETTINGS)
    directory = RunDirectory(tmp_path / "run")
    path, bound_to = directory.best / "best.json", directory.experiment_checksum()

    def reseal(change):
        content = unseal(json.loads(path.read_text()), bound_to)
        change(content)
        path.write_text(json.dumps(seal(content, bound_to)))

    reseal(lambda _: None)
    assert graft.load_result(tmp_path / "run").client(0).round
    reseal(change)
    with pytest.raises(graft.InputError, match=words):
        graft.load_result(tmp_path / "run").client(0)


def test_best_models_of_another_run_are_refused(tmp_path):
    for seed in (0, 1):
        graft.run("fedavg", out=tmp_path / str(seed), **SETTINGS | {"seed": seed})
    shutil.rmtree(tmp_path / "0" / "best")
    shutil.copytree(tmp_path / "1" / "best", tmp_path / "0" / "best")
    with pytest.raises(graft.InputError, match="damaged or not of the run beside it"):
        graft.load_result(tmp_path / "0")


def test_a_run_is_not_resumed_with_best_models_of_another_shape(tmp_path):
    for width in (8, 9):
        stop_at(tmp_path / str(width), 2, width=width, checkpoint_every=1)
    shutil.rmtree(tmp_path / "8" / "best")
    with pytest.raises(graft.InputError, match=r"The best models in .* are damaged or of another run: .* is missing"):
        graft.resume(tmp_path / "8")
    stored = RunDirectory(tmp_path / "9").load().best
    shutil.copytree(tmp_path / "9" / "best", tmp_path / "8" / "best")
    path = tmp_path / "8" / "checkpoint" / "checkpoint.json"
    content = unseal(json.loads(path.read_text()))
    other = unseal(json.loads((tmp_path / "9" / "checkpoint" / "checkpoint.json").read_text()))
    path.write_text(json.dumps(seal({**content, "best": other["best"]})))
    assert stored
    with pytest.raises(graft.InputError, match=r"of the own models is float32 of shape|are of round"):
        graft.resume(tmp_path / "8")


def test_models_are_copies_that_later_rounds_do_not_change():
    kept = {}

    def note(record):
        if record["round"] == 1:
            kept.update({client: torch.clone(leaf) for client, leaf in weights(engine.state()).items()})

    def weights(state):
        return {client: tree.model.head.weight for client, tree in state.items()}

    from graft.engines.in_process import InProcess

    begin = InProcess.__init__

    def remember(self, *arguments, **options):
        nonlocal engine
        begin(self, *arguments, **options)
        engine = self

    engine = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "__init__", remember)
        result = graft.run("local", callbacks=[note], **SETTINGS | {"rounds": 4, "evaluate_every": 4})
        first = graft.run("local", callbacks=[note], **SETTINGS | {"rounds": 4, "learning_rate": 1e-12})
    assert first.client(0).round == 1
    assert torch.equal(first.client(0).weights.head.weight, kept[0])
    assert result.client(0).round == 4
