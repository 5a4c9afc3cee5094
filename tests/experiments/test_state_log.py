"""Checkpoints of clients that are read on demand: what is written again, what stays, and what is refused."""

import json

import pytest
import torch

from graft.engines.state_files import StateFiles
from graft.errors import InputError, RunError
from graft.experiments import state_log
from graft.experiments.checkpoints import Checkpoint, Origin, load_checkpoint, save_checkpoint
from graft.experiments.state_log import LoggedStates, StateLog
from graft.files import seal
from graft.tensors.trees import Tree
from tests.toy import same

ORIGIN = Origin('method = "fedavg"', "models", "data", "cpu", 1, 10**9)


def state_of(client, value=0.0, *, trained=False):
    state = Tree(model=Tree(weight=torch.full((4, 3), client + value), steps=torch.tensor(client)))
    if trained:
        state.optimizer = Tree(first=torch.full((4, 3), value))
    return state


def states_of(*clients, value=0.0):
    files = StateFiles()
    files.put({client: state_of(client, value, trained=client % 2 == 0) for client in clients})
    return files


def checkpoint_of(states, round=1):
    return Checkpoint(round, Tree(model=torch.ones(3)), states, ORIGIN, "checksum")


def written(folder):
    """When each file of states was written."""
    stored = load_checkpoint(folder).clients.stored
    return {file.name: (folder / file.name).stat().st_mtime_ns for part in stored for file in part.tree.files}


def check(folder, expected):
    """The checkpoint in a folder holds exactly these states."""
    loaded = load_checkpoint(folder)
    assert set(loaded.clients) == set(expected)
    assert all(same(loaded.clients[client], expected[client]) for client in expected)
    return loaded


def test_states_of_those_who_took_part_come_back_as_they_were(tmp_path):
    states = states_of(3, 999_999, 4, 17)
    save_checkpoint(tmp_path / "checkpoint", checkpoint_of(states))
    loaded = check(tmp_path / "checkpoint", states)
    assert isinstance(loaded.clients, LoggedStates)
    assert 5 not in loaded.clients
    assert same(loaded.server, Tree(model=torch.ones(3)))
    text = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    assert text["format"] == "graft-checkpoint-4"


def test_a_checkpoint_of_everybody_has_the_format_that_it_had(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", checkpoint_of({0: state_of(0), 1: state_of(1)}))
    text = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text())
    assert text["format"] == "graft-checkpoint-3"
    assert "states" not in text


def test_a_run_in_which_nobody_was_asked_has_a_checkpoint_too(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", checkpoint_of(StateFiles(), 0))
    check(tmp_path / "checkpoint", {})


def test_files_of_states_that_did_not_change_stay(tmp_path):
    states = states_of(*range(20))
    log = save_checkpoint(tmp_path, checkpoint_of(states))
    before = written(tmp_path)
    states.put({2: state_of(2, 0.5, trained=True), 30: state_of(30)})
    log = save_checkpoint(tmp_path, checkpoint_of(states, 2), log)
    after = written(tmp_path)
    assert before.items() <= after.items()
    assert len(after) > len(before)
    check(tmp_path, states)
    assert written(tmp_path) == after
    save_checkpoint(tmp_path, checkpoint_of(states, 3), log)
    assert written(tmp_path).keys() == after.keys()  # nothing had changed
    save_checkpoint(tmp_path, checkpoint_of(states, 3), StateLog())  # which knows of nothing that is there
    assert written(tmp_path).keys() != after.keys()
    check(tmp_path, states)


def test_states_of_before_do_not_pile_up(tmp_path):
    states = states_of(*range(16))
    log = save_checkpoint(tmp_path, checkpoint_of(states))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    for number in range(2, 40):
        states.put({client: state_of(client, number, trained=True) for client in (number % 16, 5 * number % 16)})
        log = save_checkpoint(tmp_path, checkpoint_of(states, number), log)
        check(tmp_path, states)
    rows = sum(len(part.clients) for part in log.stored)
    assert rows <= 2 * 16
    assert sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) < 8 * size


def test_there_are_never_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(state_log, "MOST_FILES", 4)
    states, log = StateFiles(), None
    for client in range(12):
        states.put({client: state_of(client)})
        log = save_checkpoint(tmp_path, checkpoint_of(states), log)
        assert len(log.stored) <= 5
    check(tmp_path, states)


def test_a_run_that_goes_on_writes_only_what_changes_from_then_on(tmp_path):
    save_checkpoint(tmp_path, checkpoint_of(states_of(1, 3, 5)))
    loaded = load_checkpoint(tmp_path)
    before = written(tmp_path)
    states = StateFiles.of(loaded.clients)
    states.put({9: state_of(9)})
    save_checkpoint(tmp_path, checkpoint_of(states, 2), StateLog.of(loaded.clients.stored))
    assert before.items() <= written(tmp_path).items()
    check(tmp_path, states)


def test_states_of_another_beginning_take_the_place_of_all_of_before(tmp_path):
    log = save_checkpoint(tmp_path, checkpoint_of(states_of(1, 3, 5)))
    anew = states_of(3)
    save_checkpoint(tmp_path, checkpoint_of(anew), log)
    check(tmp_path, anew)


def test_a_state_that_is_no_number_is_refused_with_its_client_and_the_last_checkpoint_stays(tmp_path):
    states = states_of(1, 3)
    log = save_checkpoint(tmp_path, checkpoint_of(states))
    good = dict(states)
    states.put({3: state_of(3, float("nan"))})
    with pytest.raises(RunError, match=r"Round 2 is not kept .*'model/weight' of client 3 holds a NaN"):
        save_checkpoint(tmp_path, checkpoint_of(states, 2), log)
    check(tmp_path, good)


def changed(text, change):
    values = {name: value for name, value in json.loads(text).items() if name != "checksum"}
    change(values)
    return json.dumps(seal(values))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values["states"].pop(), "states of 1 clients, not of 3"),
        (lambda values: values["states"][0]["clients"].append(8), "another number of rows"),
        (lambda values: values["states"][1].update(clients=[3, 3]), "two states in one file"),
        (lambda values: values["states"][0]["clients"].__setitem__(0, -1), "greater than or equal to 0"),
        (lambda values: values["states"][0].update(more=1), "more"),
        (lambda values: values.update(format="graft-checkpoint-3"), "states"),
        (lambda values: values.update(format="graft-checkpoint-9"), "of another version of Graft"),
        (lambda values: values.update(clients=4), "not of 4"),
    ],
)
def test_a_list_of_states_that_cannot_be_is_refused(tmp_path, change, words):
    save_checkpoint(tmp_path, checkpoint_of(states_of(2, 3, 5)))
    path = tmp_path / "checkpoint.json"
    text = path.read_text()
    path.write_text(changed(text, dict.copy))
    check(tmp_path, states_of(2, 3, 5))
    path.write_text(changed(text, change))
    with pytest.raises(InputError, match=words):
        load_checkpoint(tmp_path)


def test_a_damaged_file_of_states_is_refused(tmp_path):
    log = save_checkpoint(tmp_path, checkpoint_of(states_of(2, 3, 5)))
    path = tmp_path / log.stored[0].tree.files[0].name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not what was written"):
        load_checkpoint(tmp_path)
