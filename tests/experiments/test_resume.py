"""Going on with a run: only with what it began with, and never two at once."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.nn import MLP
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.data import datasets
from graft.errors import InputError, MemoryWarning, RunError
from graft.experiments import engines
from graft.experiments import run as runs
from graft.experiments.run_directory import RunDirectory
from graft.methods.fedavg import FedAvg
from graft.methods.fedprox import FedProx
from tests.damage import essence

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=5, checkpoint_every=1
)


def stop_after(number):
    def stop(record):
        if record["round"] == number:
            raise ZeroDivisionError

    return stop


def half_run(place, method="fedprox", number=3, **changes):
    with pytest.raises(ZeroDivisionError):
        graft.run(method, out=place, callbacks=[stop_after(number)], **SETTINGS | changes)
    return place


def test_a_run_stopped_before_its_first_round_is_resumed_from_round_zero(tmp_path, monkeypatch):
    class Stopped(Exception):
        pass

    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(runs.Run, "next_round", stop)
        with pytest.raises(Stopped):
            graft.run("fedprox", out=tmp_path / "run", **SETTINGS)
    assert RunDirectory(tmp_path / "run").load().round == 0
    assert essence(graft.resume(tmp_path / "run")) == essence(graft.run("fedprox", **SETTINGS))


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(tmp_path):
    place = half_run(tmp_path / "run", number=1)
    shutil.rmtree(place / "checkpoint")
    (place / "rounds.jsonl").unlink()
    assert essence(graft.resume(place)) == essence(graft.run("fedprox", **SETTINGS))


@pytest.mark.parametrize(
    ("line", "changed", "words"),
    [
        ("learning_rate = 0.1", "learning_rate = 0.2", "learning_rate is 0.2, it was 0.1"),
        ("rounds = 5", "rounds = 50", "rounds is 50, it was 5"),
        ("seed = 0", "seed = 1", "seed is 1, it was 0"),
        ('method = "fedprox"', 'method = "scaffold"', "method is 'scaffold'"),
        ("mu = ", "mu = 1", "settings.mu is"),
        ('memory = ""', 'memory = "1KB"', "memory is '1KB'"),
    ],
)
def test_a_changed_experiment_is_refused_and_the_change_named(tmp_path, line, changed, words):
    place = half_run(tmp_path / "run")
    file = place / "experiment.toml"
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    file.write_text(file.read_text().replace(line, changed))
    if "scaffold" in changed:
        file.write_text(file.read_text().partition("[settings]")[0])
    with pytest.raises(InputError, match=words):
        graft.resume(place)
    file.write_bytes(before["experiment.toml"])
    assert {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    assert graft.resume(place).finished


def test_an_experiment_file_that_says_the_same_in_other_words_is_fine(tmp_path):
    place = half_run(tmp_path / "run")
    file = place / "experiment.toml"
    file.write_text("# my best run\n" + file.read_text().replace("learning_rate = 0.01", "learning_rate = 1e-2"))
    assert essence(graft.resume(place)) == essence(graft.run("fedprox", **SETTINGS))


def test_a_method_with_other_fields_is_refused(tmp_path):
    place = half_run(tmp_path / "run", FedProx(mu=0.25))
    with pytest.raises(InputError, match=r"settings.mu is 0.5, it was 0.25"):
        graft.resume(place, method=FedProx(mu=0.5))
    assert graft.resume(place, method=FedProx(mu=0.25)).finished


@pytest.mark.parametrize("what", ["x", "y", "edges", "train"])
def test_data_that_changed_in_anything_but_its_partition_are_refused(tmp_path, what):
    graph = datasets.load(SETTINGS["dataset"])
    masks = {name: np.arange(graph.nodes) % 3 == place for place, name in enumerate(("train", "validation", "test"))}
    graph = replace(graph, **masks)
    settings = {"split": "own", "partition": "random"}
    place = half_run(tmp_path / "run", dataset=graph, **settings)
    values = getattr(graph, what).copy()
    if what == "edges":
        values = values[:, (values[0] + values[1] != values[0, 0] + values[1, 0])]
    else:
        values[0] = 1 - values[0] if what != "train" else ~values[0]
    with pytest.raises(InputError, match="The data or its partition is not what this run began with"):
        graft.resume(place, dataset=replace(graph, **{what: values}))
    assert graft.resume(place, dataset=graph).finished


def test_other_models_are_refused(tmp_path):
    def net(width, activation="relu"):
        return MLP([6, width, 3], act=activation, norm=None)

    place = half_run(tmp_path / "run", "local", models=Own(net(4)))
    with pytest.raises(InputError, match="The models are not those that this run began with"):
        graft.resume(place, models=Own(net(4), "another name"))
    with pytest.raises(InputError, match=r"not one of this run: .* is float32 of shape \[4"):
        graft.resume(place, models=Own(net(5)))
    assert graft.resume(place, models=Own(net(4))).finished


class Own(torch.nn.Module):
    """A model that says no more of itself than a name."""

    def __init__(self, inner, name="mine"):
        super().__init__()
        self.inner, self.name = inner, name

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.inner(x)

    def __repr__(self):
        return self.name


def test_a_resume_uses_the_threads_of_the_run_that_it_goes_on_with(tmp_path, monkeypatch):
    """They are chosen by how busy the machine is, and sums of numbers depend on them."""
    monkeypatch.setattr(runs, "choose_threads", lambda *_: 2)
    unbroken = graft.run("centralised", **SETTINGS)
    half_run(tmp_path / "run", "centralised", number=1)
    monkeypatch.setattr(runs, "choose_threads", lambda *_: 1)
    resumed = graft.resume(tmp_path / "run")
    assert resumed.summary["threads"] == unbroken.summary["threads"] == 2
    assert essence(resumed) == essence(unbroken)
    assert graft.run("centralised", **SETTINGS).summary["threads"] == 1


def test_a_resume_uses_the_memory_plan_of_the_run_that_it_goes_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "budget", lambda _: 10**9)
    unbroken = graft.run("fedprox", **SETTINGS)
    half_run(tmp_path / "run")
    monkeypatch.setattr(engines, "budget", lambda _: 1000)
    assert essence(graft.resume(tmp_path / "run")) == essence(unbroken)
    with pytest.warns(MemoryWarning):  # a new run is planned anew
        graft.run("fedprox", **SETTINGS)


def test_a_run_that_ended_by_patience_is_finished(tmp_path):
    settings = SETTINGS | {"rounds": 60, "patience": 2}
    first = graft.run("local", out=tmp_path / "run", **settings)
    assert first.rounds[-1]["round"] < 60
    with pytest.raises(InputError, match=f"finished run of {first.rounds[-1]['round']} rounds"):
        graft.resume(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert essence(graft.resume(tmp_path / "run")) == essence(first)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_result_that_was_lost_is_made_again_of_the_rounds(tmp_path, damage):
    first = graft.run("fedprox", out=tmp_path / "run", **SETTINGS)
    file = tmp_path / "run" / "result.json"
    before = json.loads(file.read_text())
    file.unlink() if damage == "missing" else file.write_text(file.read_text()[:-40])
    assert essence(graft.resume(tmp_path / "run")) == essence(first)
    after = json.loads(file.read_text())
    differing = {"seconds", "peak_memory_bytes", "checksum"}
    assert {name: after[name] for name in after if name not in differing} == {
        name: before[name] for name in before if name not in differing
    }
    with pytest.raises(InputError, match="nothing to resume"):
        graft.resume(tmp_path / "run")


def test_a_run_that_goes_on_cannot_be_resumed_or_overwritten_meanwhile(tmp_path):
    place = tmp_path / "run"
    refusals = []

    def meddle(_):
        for call in (
            lambda: graft.resume(place),
            lambda: graft.run("fedavg", out=place, overwrite=True, **SETTINGS),
        ):
            with pytest.raises(InputError, match="Another run or resume is writing into") as caught:
                call()
            refusals.append(caught)

    result = graft.run("fedprox", out=place, callbacks=[meddle], **SETTINGS)
    assert len(refusals) == 10
    assert essence(result) == essence(graft.run("fedprox", **SETTINGS))
    assert graft.run("fedavg", out=place, overwrite=True, **SETTINGS).finished  # the lock went with the run


def test_a_checkpoint_that_an_earlier_version_left_is_never_resumed_after_overwriting(tmp_path):
    place = tmp_path / "run"
    graft.run("fedprox", out=place, **SETTINGS | {"seed": 7})
    shutil.copytree(place / "checkpoint", place / "checkpoint.old")
    half_run(place, number=1, overwrite=True)
    assert not (place / "checkpoint.old").exists()
    assert essence(graft.resume(place)) == essence(graft.run("fedprox", **SETTINGS))


def test_a_model_that_is_no_number_is_never_checkpointed(tmp_path):
    class Spoils(FedAvg):
        def round(self, server, clients):
            super().round(server, clients)
            if int(server.round) == 3:
                server.state.model.head.bias.fill_(torch.nan)

    with pytest.raises(RunError, match=r"'model/head/bias' of the server .* The checkpoint of round 2 .* is good"):
        graft.run(Spoils(), out=tmp_path / "run", **SETTINGS)
    assert RunDirectory(tmp_path / "run").load().round == 2


def test_a_full_disk_ends_a_run_with_a_sentence_and_it_can_be_resumed(tmp_path, monkeypatch):
    calls = iter(range(10**6))

    def full(descriptor, fsync=os.fsync):
        if next(calls) == 25:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(RunError, match=r"cannot be written.*No space left on device\."):
            graft.run("fedprox", out=tmp_path / "run", **SETTINGS)
    assert essence(graft.resume(tmp_path / "run")) == essence(graft.run("fedprox", **SETTINGS))


def test_a_directory_that_is_deleted_meanwhile_ends_a_run_with_a_sentence(tmp_path):
    with pytest.raises(RunError, match=r"cannot be written.*: No such file or directory\."):
        graft.run("fedprox", out=tmp_path / "run", callbacks=[lambda _: shutil.rmtree(tmp_path / "run")], **SETTINGS)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_one_sentence(monkeypatch, error):
    def lack(*_):
        raise error

    monkeypatch.setattr(runs, "build_setup", lack)
    with pytest.raises(RunError, match="needs more memory than there is"):
        graft.run("fedprox", **SETTINGS)


@pytest.mark.parametrize("name", ["F[/b]", "[red]", "a*b?", "🍎 and spaces", "ünï"])
def test_any_name_will_do_for_a_directory(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    half_run(tmp_path / name / "run")
    for command in (["resume", f"{name}/run"], ["report", name]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    assert (tmp_path / name / "run" / "report.html").exists()


def test_an_emoji_in_a_path_survives_the_record(tmp_path):
    graph = datasets.load(SETTINGS["dataset"])
    np.savez(tmp_path / "🍎.npz", x=graph.x, edges=graph.edges, y=graph.y)
    settings = SETTINGS | {"dataset": str(tmp_path / "🍎.npz")}
    half_run(tmp_path / "run", **settings)
    assert essence(graft.resume(tmp_path / "run")) == essence(graft.run("fedprox", **settings))


def test_escape_sequences_in_data_never_reach_the_screen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evil = "\x1b[31mred\x1b[0m"
    (tmp_path / evil).mkdir()
    folder = tmp_path / evil
    (folder / "nodes.csv").write_text("id,label,a,b\n" + "".join(f"{evil}{n},{evil}{n % 2},{n},1\n" for n in range(30)))
    (folder / "edges.csv").write_text("from,to\n" + "".join(f"{evil}{n},{evil}{n + 1}\n" for n in range(29)))
    settings = ["--method", "fedavg", "--clients", "2", "--rounds", "1"]
    outputs = []
    for command in (
        ["run", "--dataset", evil, *settings, "--out", "run"],
        ["run", "--dataset", evil, *settings, "--out", f"{evil}/run"],
        ["report", "run"],
        ["partition", evil, "--clients", "2"],
        ["run", "--dataset", f"{evil}/nothing", *settings],
        ["run", "--method", evil],
        ["resume", evil],
    ):
        done = CliRunner().invoke(app, command)
        outputs.append(done.output + done.stderr)
    (folder / "edges.csv").write_text(f"from,to\n{evil}0,{evil}99\n")
    outputs.append(CliRunner().invoke(app, ["run", "--dataset", evil, *settings, "--out", "other"]).stderr)
    assert all("\x1b[31m" not in output for output in outputs), outputs
    assert "Traceback" not in "".join(outputs)
    assert "\\x1b[31m" in outputs[-1]
