"""What callbacks hear of a run, in which order, and what becomes of a run whose callbacks fail."""

import json

import pytest

import graft
from graft.errors import RunError
from graft.experiments import run as runs
from graft.experiments.run_directory import RunDirectory
from tests.damage import essence

SETTINGS = dict(
    dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=4, checkpoint_every=2
)


class Diary(graft.Callback):
    """Notes every call; fails in one of them, if asked to."""

    def __init__(self, fails_in=None):
        self.calls, self.fails_in, self.starts, self.results, self.paths = [], fails_in, [], [], []

    def note(self, *call):
        self.calls.append(call)
        if call == self.fails_in:
            raise ZeroDivisionError(f"in {call}")

    def on_phase(self, phase):
        self.note("phase", phase)

    def on_start(self, start):
        self.starts.append(start)
        self.note("start", len(start.records))

    def on_round(self, record):
        self.note("round", record["round"])

    def on_checkpoint(self, number, directory):
        self.paths.append(directory)
        self.note("checkpoint", number)

    def on_end(self, result):
        self.results.append(result)
        self.note("end", result.finished)

    def close(self):
        self.note("close")


WHOLE = [
    ("phase", "reading data"),
    ("phase", "setting up"),
    ("start", 0),
    ("phase", "training"),
    ("round", 1),
    ("checkpoint", 2),
    ("round", 2),
    ("round", 3),
    ("checkpoint", 4),
    ("round", 4),
    ("phase", "checking predictions"),
    ("phase", "writing"),
    ("end", True),
    ("close",),
]


@pytest.mark.parametrize("engine", ["in_process", "loopback"])
def test_a_run_is_told_in_its_order_with_any_engine(tmp_path, engine):
    diary = Diary()
    graft.run("fedavg", out=tmp_path / "run", callbacks=[diary], engine=engine, device="cpu", **SETTINGS)
    assert diary.calls == WHOLE


def test_a_run_without_a_directory_has_no_checkpoints_and_writes_nothing():
    diary = Diary()
    graft.run("fedavg", callbacks=[diary], **SETTINGS)
    assert diary.calls == [call for call in WHOLE if call[0] != "checkpoint" and call != ("phase", "writing")]
    assert diary.starts[0].directory is None


def test_the_first_rounds_on_a_gpu_have_other_names(monkeypatch):
    diary = Diary()
    monkeypatch.setattr(runs, "first_phases", lambda _: ("compiling kernels", "capturing", "capturing"))
    graft.run("fedavg", callbacks=[diary], **SETTINGS)
    told = [call for call in diary.calls if call[0] == "round" or call[1:2] in (("capturing",), ("training",))]
    assert told == [
        ("round", 1),
        ("phase", "capturing"),
        ("round", 2),
        ("round", 3),
        ("phase", "training"),
        ("round", 4),
    ]


def test_a_start_tells_of_the_experiment_its_clients_and_its_place(tmp_path):
    diary = Diary()
    graft.run("fedprox", out=tmp_path / "run", callbacks=[diary], settings={"mu": 0.5}, **SETTINGS)
    [start] = diary.starts
    assert start.experiment.settings == {"mu": 0.5}
    assert list(start.clients) == [0, 1, 2]
    assert start.directory == tmp_path / "run"
    assert diary.paths == [tmp_path / "run"] * 2
    assert (diary.paths[0] / "checkpoint" / "checkpoint.json").exists()


def test_clients_with_graphs_of_their_own_are_told_by_name():
    diary = Diary()
    sizes = {"alpha": 40, "beta": 50}
    graphs = {name: graft.load(f"synthetic:nodes={size},degree=4,classes=2,features=4") for name, size in sizes.items()}
    graft.run("fedavg", graft.Federation(graphs), rounds=1, width=4, callbacks=[diary])
    assert list(diary.starts[0].clients) == ["alpha", "beta"]


def test_a_plain_function_hears_of_every_round_as_it_is_on_record(tmp_path):
    records = []
    result = graft.run("fedavg", out=tmp_path / "run", callbacks=[records.append], **SETTINGS)
    assert records == result.rounds
    stored = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [line["test"] for line in stored] == [record["test"] for record in records]
    assert graft.run("fedavg", callbacks=[records.append, records.append], **SETTINGS)
    assert len(records) == 4 + 2 * 4


def test_callbacks_change_nothing():
    assert essence(graft.run("fedavg", callbacks=[Diary(), print], **SETTINGS)) == essence(
        graft.run("fedavg", **SETTINGS)
    )
    assert essence(graft.run("fedavg", **SETTINGS, seed=1)) != essence(graft.run("fedavg", **SETTINGS))


@pytest.mark.parametrize("call", [call for call in WHOLE if call != ("close",)])
def test_an_exception_in_a_callback_ends_the_run_and_all_are_closed(tmp_path, call):
    failing, other = Diary(fails_in=call), Diary()
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[failing, other], **SETTINGS)
    assert failing.calls == [*WHOLE[: WHOLE.index(call) + 1], ("close",)]
    assert other.calls == [*WHOLE[: WHOLE.index(call)], ("close",)]


@pytest.mark.parametrize("call", [("start", 0), ("round", 1), ("checkpoint", 2), ("round", 3), ("checkpoint", 4)])
def test_a_run_that_a_callback_ended_is_resumed_as_if_nothing_had_been(tmp_path, call):
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[Diary(fails_in=call)], **SETTINGS)
    diary = Diary()
    resumed = graft.resume(tmp_path / "run", callbacks=[diary])
    assert essence(resumed) == essence(graft.run("fedavg", **SETTINGS))
    covered = {1: 0, 3: 2}.get(call[1], call[1])  # the round of the checkpoint that it goes on from
    assert [number for name, *number in diary.calls if name == "round"] == [[n] for n in range(covered + 1, 5)]
    assert ("start", covered) in diary.calls
    assert [record["round"] for record in diary.starts[0].records] == list(range(1, covered + 1))


def test_a_finished_run_whose_end_could_not_be_told_keeps_its_result(tmp_path):
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[Diary(fails_in=("end", True))], **SETTINGS)
    assert RunDirectory(tmp_path / "run").has_result()


def test_all_callbacks_are_closed_although_one_cannot_be(tmp_path):
    first, second = Diary(fails_in=("close",)), Diary()
    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", callbacks=[first, second], **SETTINGS)
    assert second.calls[-1] == ("close",)
    assert RunDirectory(tmp_path / "run").has_result()


def test_callbacks_of_a_run_that_fails_are_closed_and_hear_of_no_end():
    diary = Diary()
    with pytest.raises(RunError, match="finite"):
        graft.run("fedavg", callbacks=[diary], optimizer="sgd", learning_rate=1e30, **SETTINGS)
    assert diary.calls[-1] == ("close",)
    assert not diary.results
