"""The files of a run: what is written whole comes back, and nothing else is taken for it."""

import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

from graft.errors import InputError, RunError
from graft.experiments import checkpoints, tensor_files
from graft.experiments.checkpoints import Checkpoint, Origin, load_checkpoint, save_checkpoint
from graft.experiments.record_files import RoundLog
from graft.experiments.run_directory import RunDirectory
from graft.experiments.state_checks import check_state
from graft.experiments.tensor_files import read_tensors, view_tensors, write_tensors
from graft.files import Lock, checksum, printable, seal, unseal, write_text
from graft.tensors.trees import Tree, flatten

ORIGIN = Origin(experiment="rounds = 3\n", models="m", data="d", device="cpu", threads=1, memory=10**9)


def model(value=0.0):
    return Tree(conv=Tree(weight=torch.full((3, 2), value), bias=torch.zeros(2)))


def checkpoint(round=2, server=None, client=None):
    client = client or Tree(
        model=model(1.0),
        trained=torch.tensor(True),
        optimizer=Tree(model=Tree(first=model(0.1), second=model(0.2), steps=torch.tensor(6.0))),
    )
    clients = {0: client, 1: Tree(model=model())}
    return Checkpoint(round, server or Tree(model=model(2.0), count=3), clients, ORIGIN, rounds_checksum="abc")


def same(first, second):
    first, second = dict(flatten(first)), dict(flatten(second))
    return list(first) == list(second) and all(
        torch.equal(torch.as_tensor(first[path]), torch.as_tensor(second[path])) for path in first
    )


def reseal(path, change):
    """Changes what a JSON file holds and makes its checksum right again, as only somebody who means it would."""
    content = unseal(json.loads(path.read_text()))
    change(content)
    path.write_text(json.dumps(seal(content)))


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    saved = checkpoint()
    save_checkpoint(tmp_path / "checkpoint", saved)
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert (loaded.round, loaded.origin, loaded.rounds_checksum) == (2, ORIGIN, "abc")
    assert not loaded.finished
    assert same(loaded.server, saved.server)
    assert all(same(loaded.clients[client], saved.clients[client]) for client in (0, 1))
    assert loaded.clients[0].trained.dtype == torch.bool
    assert not same(loaded.server, checkpoint(server=Tree(model=model(2.1), count=3)).server)


def test_a_checkpoint_of_round_zero_without_any_state_is_possible(tmp_path):
    empty = Checkpoint(0, Tree(), {0: Tree(), 1: Tree()}, ORIGIN, "")
    save_checkpoint(tmp_path / "checkpoint", empty)
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert (loaded.round, loaded.server, loaded.clients) == (0, Tree(), {0: Tree(), 1: Tree()})


@pytest.mark.parametrize("change", [{"threads": 2**63}, {"threads": 0}, {"memory": 10**30}])
def test_numbers_that_no_machine_can_have_are_refused(tmp_path, change):
    save_checkpoint(tmp_path / "checkpoint", replace(checkpoint(), origin=replace(ORIGIN, **change)))
    with pytest.raises(InputError, match=f"origin.{next(iter(change))}"):
        load_checkpoint(tmp_path / "checkpoint")


def test_a_new_checkpoint_leaves_nothing_of_the_old_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "FILE_BYTES", 20)
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, checkpoint())
    before = {path.name for path in folder.iterdir()}
    assert len(before) > 5  # many files, as state is large for files this small
    (folder / "state-left-by-a-crash.safetensors.part").touch()
    save_checkpoint(folder, checkpoint(3, Tree(model=model(7.0), count=3)))
    after = {path.name for path in folder.iterdir()}
    assert after != before
    listed = {stored["name"] for stored in json.loads((folder / "checkpoint.json").read_text())["files"]}
    assert after == listed | {"checkpoint.json"}
    assert load_checkpoint(folder).round == 3


def test_a_crash_before_the_last_file_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, checkpoint())

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write_bytes", crash)  # of checkpoint.json; tensors are written elsewhere
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(folder, checkpoint(3, Tree(model=model(7.0), count=3)))
    assert len(list(folder.iterdir())) == 3
    assert load_checkpoint(folder).round == 2
    assert same(load_checkpoint(folder).server, checkpoint().server)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_state_that_is_no_number_is_never_kept_as_a_checkpoint(tmp_path, bad):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, checkpoint())
    with pytest.raises(RunError, match=r"Round 3 is not kept .* 'model/conv/weight' of the server"):
        save_checkpoint(folder, checkpoint(3, server=Tree(model=model(bad))))
    with pytest.raises(RunError, match="'model/conv/weight' of client 0"):
        save_checkpoint(folder, checkpoint(3, client=Tree(model=model(bad))))
    assert load_checkpoint(folder).round == 2


def test_a_checkpoint_of_another_version_is_refused_by_its_name(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", checkpoint())
    (tmp_path / "checkpoint" / "checkpoint.json").write_text('{"format": "graft-checkpoint-1", "round": 3}')
    with pytest.raises(InputError, match=r"format graft-checkpoint-1 of another version .* reads graft-checkpoint-3"):
        load_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.update(round=-1), "round"),
        (lambda content: content.update(round=True), "round"),
        (lambda content: content.update(round="2"), "round"),
        (lambda content: content.update(clients=10**12), "clients"),
        (lambda content: content.update(surprise=1), "surprise"),
        (lambda content: content.update(finished=1), "finished"),
        (lambda content: content.pop("rounds_checksum"), "rounds_checksum"),
        (lambda content: content["origin"].update(threads=0), "threads"),
        (lambda content: content["order"].pop(), "not those that it lists"),
        (lambda content: content["order"].append(content["order"][0]), "not those that it lists"),
        (lambda content: content["files"].clear(), "not those that it lists"),
        (lambda content: content["files"][0].update(name="../elsewhere"), "lies elsewhere"),
        (lambda content: content["files"][0].update(size=3), "another size"),
        (lambda content: content["files"][0].update(sha256="0" * 64), "not what was written"),
        (lambda content: content["numbers"].update({"server/count/deeper": 1}), "not those that it lists"),
        (lambda content: content["numbers"].update({"server/count": "3"}), "numbers"),
    ],
)
def test_facts_that_cannot_be_are_refused_even_with_a_right_checksum(tmp_path, change, words):
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, checkpoint())
    reseal(folder / "checkpoint.json", lambda _: None)
    assert load_checkpoint(folder).round == 2
    reseal(folder / "checkpoint.json", change)
    with pytest.raises(InputError, match=words):
        load_checkpoint(folder)


def test_a_wrong_checksum_is_enough_to_refuse(tmp_path):
    path = tmp_path / "checkpoint" / "checkpoint.json"
    save_checkpoint(path.parent, checkpoint())
    path.write_text(path.read_text().replace('"round": 2', '"round": 1'))
    with pytest.raises(InputError, match="checksum"):
        load_checkpoint(path.parent)


def test_tensor_files_come_back_and_say_what_is_wrong_with_them(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "none": torch.empty(0, 4)}
    stored = write_tensors(tensors, tmp_path)
    back = read_tensors(tmp_path, stored)
    assert {path: leaf.shape for path, leaf in back.items()} == {path: leaf.shape for path, leaf in tensors.items()}
    assert all(torch.equal(back[path], tensors[path]) for path in tensors)
    good = bytearray((tmp_path / stored.name).read_bytes())
    assert torch.equal(view_tensors(bytearray(good), "file")["a"], tensors["a"])
    length = int.from_bytes(good[:8], "little")
    header = json.loads(good[8 : 8 + length])

    def with_header(**changes):
        text = json.dumps({**header, **changes}).encode()
        return bytearray(len(text).to_bytes(8, "little") + text + good[8 + length :])

    absurd = {
        "impossible length": bytearray((2**62).to_bytes(8, "little")) + good[8:],
        "begins with": bytearray(b"abc"),
        "cannot be read": bytearray((3).to_bytes(8, "little")) + good[8:],
        "unknown dtype": with_header(a={**header["a"], "dtype": "F99"}),
        "another size": with_header(a={**header["a"], "shape": [2**40, 2**40]}),
        "impossible shape": with_header(a={**header["a"], "shape": [-2, -3]}),
        "without a place": with_header(a={**header["a"], "data_offsets": [0.5, 24]}),
        "belong to no tensor": good + b"more",
        "does not lie within": good[:-10],
    }
    for words, content in absurd.items():
        with pytest.raises(ValueError, match=words):
            view_tensors(content, "file")


def test_restored_state_must_have_the_names_shapes_and_dtypes_of_a_fresh_one():
    fresh = Tree(model=model(), trained=torch.tensor(False), seen=0)
    moments = Tree(first=model(0.1), second=model(0.2), steps=torch.tensor(6.0))
    good = Tree(model=model(3.0), trained=torch.tensor(True), seen=4, optimizer=Tree(model=moments))
    check_state(good, fresh, "client 0")
    check_state(good | {"optimizer": Tree(model=Tree(steps=torch.tensor(0.0)))}, fresh, "client 0")
    wide = Tree(conv=Tree(weight=torch.zeros(3, 9), bias=torch.zeros(2)))
    cases = {
        "'seen' of client 0 is missing": Tree(model=model(), trained=torch.tensor(True)),
        "shape .3, 9., not float32 of shape .3, 2.": good | {"model": wide},
        "is float32 of shape .., not bool": good | {"trained": torch.tensor(1.0)},
        "is a float, not a int": good | {"seen": 4.0},
        "not part of the state": good | {"extra": torch.zeros(1)},
        "NaN or an infinity": good | {"model": model(torch.nan)},
        "'optimizer/model/first/conv/weight' of client 0 is float32 of shape .3, 9.": good
        | {"optimizer": Tree(model=moments | {"first": wide, "second": wide})},
        "'optimizer/model/steps' of client 0": good | {"optimizer": Tree(model=moments | {"steps": torch.zeros(2)})},
        "the optimiser 'model' of client 0 is not whole": good | {"optimizer": Tree(model=Tree(first=model()))},
        "optimiser 'model' of client 0 is not": good | {"optimizer": Tree(model=moments | {"second": Tree()})},
        "is not part of an optimiser": good | {"optimizer": Tree(model=moments | {"third": model()})},
        "'optimizer' of client 0 is not part of the state": good | {"optimizer": torch.zeros(1)},
    }
    for words, restored in cases.items():
        with pytest.raises(ValueError, match=words):
            check_state(Tree(restored), fresh, "client 0")


def test_moments_of_weights_that_only_the_server_keeps_have_its_shapes():
    small = Tree(conv=Tree(weight=torch.zeros(3, 9)))
    trained = Tree(model=model(), optimizer=Tree(copilot=Tree(first=small, second=small, steps=torch.tensor(3.0))))
    check_state(trained, Tree(model=model()), "client 1", received=Tree(copilot=small))
    with pytest.raises(ValueError, match="optimizer/copilot/first/conv/weight"):
        check_state(trained, Tree(model=model()), "client 1", received=Tree(copilot=model()))


def a_round(number, **changes):
    facts = dict(loss=0.5, up_bytes=1, down_bytes=2, peer_bytes=0, participants=[0, 1], details={}, seconds=0.1)
    return {"round": number, **facts, **changes}


@pytest.fixture
def log(tmp_path):
    (tmp_path / "experiment.toml").write_text("rounds = 3\n")
    made = RoundLog(tmp_path / "rounds.jsonl", tmp_path / "experiment.toml")
    made.begin()
    for number in (1, 2, 3):
        made.append(a_round(number, links={"mix": [(0, 1, 0.5)]}, details={"norm": float("nan")}))
    return made


def test_rounds_come_back_as_they_were_written(log):
    again = RoundLog(log.path, log.experiment)
    assert [record["round"] for record in again.read()] == [1, 2, 3]
    assert again.read()[0]["links"] == {"mix": [[0, 1, 0.5]]}
    assert again.checksum == log.checksum


def test_a_line_that_a_crash_cut_off_is_dropped_and_any_other_damage_refused(log):
    good = log.path.read_text()
    log.path.write_text(good[:-30])
    assert [record["round"] for record in log.read()] == [1, 2]
    first, second, third = good.splitlines()
    damaged = {
        "in line 2: it is not JSON": f"{first}\n{second[:-3]}\n{third}\n",
        "in line 1: its checksum": good.replace('"loss": 0.5', '"loss": 0.6', 1),
        "in line 2: its checksum": f"{first}\n{third}\n",
        "in line 1: its checksum ": f"{second}\n{first}\n{third}\n",
        "in line 3: it holds a list": f"{first}\n{second}\n[1]\n",
        "in line 3: it has no checksum": f"{first}\n{second}\n{json.dumps(a_round(3))}\n",
        "in line 2: it is not JSON ": f"{first}\n\n{second}\n{third}\n",
    }
    for words, text in damaged.items():
        log.path.write_text(text)
        with pytest.raises(InputError, match=words.rstrip()):
            log.read()


def test_rounds_belong_to_their_experiment(log):
    log.experiment.write_text("rounds = 3  # in other words\n")
    assert len(log.read()) == 3
    log.experiment.write_text("rounds = 4\n")
    with pytest.raises(InputError, match="damaged in line 1: its checksum"):
        log.read()


def test_rounds_are_checked_even_with_right_checksums(log):
    for changes, words in (({"round": 5}, "it is round 5"), ({"loss": "low"}, "loss"), ({"participants": 3}, "part")):
        log.path.unlink()
        log.begin()
        log.append(a_round(1) | changes)
        with pytest.raises(InputError, match=words):
            log.read()


def test_only_the_rounds_that_a_checkpoint_covers_are_restored(log):
    after_two = json.loads(log.path.read_text().splitlines()[1])["checksum"]
    log.path.write_text(log.path.read_text() + "garbage after the checkpoint")
    assert [record["round"] for record in log.restore(2, after_two)] == [1, 2]
    assert len(log.path.read_text().splitlines()) == 2
    log.append(a_round(3))
    assert [record["round"] for record in RoundLog(log.path, log.experiment).read()] == [1, 2, 3]
    with pytest.raises(InputError, match="does not belong to the checkpoint"):
        log.restore(2, "f" * 32)
    with pytest.raises(InputError, match="holds 3 of the 4 rounds"):
        log.restore(4, "f" * 32)


def test_two_processes_never_hold_one_directory(tmp_path):
    with Lock(tmp_path), pytest.raises(InputError, match="Another run or resume is writing into"):
        Lock(tmp_path)
    Lock(tmp_path).release()


def test_a_directory_is_claimed_only_where_nothing_is_lost(tmp_path):
    RunDirectory(tmp_path / "new" / "run").claim(overwrite=False).release()
    RunDirectory(tmp_path / "new" / "run").claim(overwrite=False).release()  # only its lock is there
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    with pytest.raises(InputError, match="exists already"):
        RunDirectory(tmp_path / "thesis").claim(overwrite=False)
    with pytest.raises(InputError, match="not a run directory"):
        RunDirectory(tmp_path / "thesis").claim(overwrite=True)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]


def test_overwriting_leaves_nothing_of_the_earlier_run(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.begin("rounds = 3\n")
    directory.append_round(a_round(1))
    directory.save(checkpoint())
    for name in ("checkpoint.old", "checkpoint.new"):  # as earlier versions left them when they were killed
        shutil.copytree(tmp_path / "checkpoint", tmp_path / name)
    assert directory.load().round == 2
    directory.begin("rounds = 4\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.toml"]
    assert RunDirectory(tmp_path).load() is None


def test_rounds_without_a_checkpoint_cannot_be_resumed(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.begin("rounds = 3\n")
    directory.append_round(a_round(1))
    with pytest.raises(InputError, match="holds no checkpoint to resume from"):
        directory.load()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written to: Permission denied"):
        RunDirectory(tmp_path / "run").claim(overwrite=False)


def test_a_full_disk_and_a_deleted_directory_are_one_sentence(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(RunError, match=r"rounds.jsonl cannot be written: No such file or directory\."):
        directory.append_round(a_round(1))
    with pytest.raises(RunError, match=r"The checkpoint of round 2 cannot be written to .*: No such file"):
        directory.save(checkpoint())

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"notes.txt cannot be written: No space left on device\."):
        write_text(tmp_path / "notes.txt", "text")

    def too_little(_):
        raise MemoryError

    monkeypatch.setattr("os.fsync", too_little)
    with pytest.raises(RunError, match="not enough memory"):
        write_text(tmp_path / "notes.txt", "text")


def test_text_that_no_file_can_hold_is_refused(tmp_path):
    write_text(tmp_path / "notes.txt", "an 🍎")
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "an 🍎"
    with pytest.raises(RunError, match="cannot be written as UTF-8"):
        write_text(tmp_path / "notes.txt", "a byte that is no letter: \udcff")


def test_escape_sequences_are_spelled_out():
    assert printable("\x1b[31mred\x07\x9b") == "\\x1b[31mred\\x07\\x9b"
    assert printable("Zürich 🍎\nnext") == "Zürich 🍎\nnext"


def test_checksums_tell_parts_apart():
    assert checksum("ab", "c") == checksum(b"ab", "c") != checksum("a", "bc")
    assert (
        seal({"a": 1, "b": 2})["checksum"] == seal({"b": 2, "a": 1})["checksum"] != seal({"a": 1, "b": 3})["checksum"]
    )
