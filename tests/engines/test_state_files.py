"""States of clients in files: what comes back, what is left behind, and what they cost."""

import errno
import gc
import os
import subprocess
import sys
import tempfile
import warnings

import pytest
import torch

from graft.engines import state_files
from graft.engines.state_files import RESTORED, StateFiles
from graft.errors import RunError
from graft.tensors.trees import Tree, flatten
from tests.toy import same


def state_of(client, *, trained=False):
    """A state of all kinds of leaves, in an order that is not that of their names."""
    state = Tree(
        model=Tree(weight=torch.full((3, 5), float(client)), bias=torch.arange(3) + client),
        flag=torch.tensor(client % 2 == 0),
        half=torch.full((3,), client, dtype=torch.bfloat16),
        empty=torch.zeros(0, 4),
        count=torch.tensor(client),
    )
    if trained:
        state.optimizer = Tree(first=torch.full((3, 5), -float(client)))
    return state


def stored_bytes(files):
    return sum(os.fstat(file._file.fileno()).st_size for file in files._files.values())


def test_states_come_back_bit_for_bit_whatever_their_form():
    states = {client: state_of(client, trained=client % 3 == 0) for client in (7, 2, 9, 4, 3)}
    files = StateFiles()
    files.put(states)
    assert list(files)
    assert set(files) == set(states)
    assert len(files) == 5
    assert 7 in files
    assert 5 not in files
    read = files.read([3, 9, 2])
    assert list(read) == [3, 9, 2]
    assert all(same(states[client], state) for client, state in read.items())
    assert all(same(states[client], files[client]) for client in states)
    assert not same(states[2], files[4])


def test_a_state_that_is_written_again_takes_the_place_of_the_old_one():
    files = StateFiles()
    files.put({client: state_of(client) for client in range(8)})
    size = stored_bytes(files)
    for number in range(20):
        files.put({client: state_of(100 * number + client) for client in range(0, 8, 2)})
    assert stored_bytes(files) == size
    assert same(files[4], state_of(1904))
    assert same(files[5], state_of(5))


def test_the_slot_of_a_client_whose_state_grew_is_given_to_another():
    files = StateFiles()
    files.put({0: state_of(0), 1: state_of(1)})
    files.put({0: state_of(50, trained=True)})
    size = stored_bytes(files)
    files.put({2: state_of(2)})
    assert stored_bytes(files) == size
    assert same(files[0], state_of(50, trained=True))
    assert same(files[1], state_of(1))
    assert same(files[2], state_of(2))


def test_changing_what_was_read_does_not_change_what_is_stored():
    files = StateFiles()
    files.put({0: state_of(0), 1: state_of(1)})
    files.read([0, 1])[1].model.weight.zero_()
    assert same(files[1], state_of(1))


def test_versions_tell_what_was_written_since():
    files = StateFiles()
    files.put({client: state_of(client) for client in range(3)})
    before = dict(files.versions)
    files.put({1: state_of(1)})
    assert [client for client in files if files.versions[client] != before[client]] == [1]
    assert not set(before.values()) & set(StateFiles.of({9: state_of(9)}).versions.values())
    assert StateFiles.of(files).versions == dict.fromkeys(range(3), RESTORED)


def test_states_are_gone_through_a_few_at_a_time(monkeypatch):
    files = StateFiles()
    files.put({client: state_of(client, trained=client > 4) for client in range(10)})
    assert [list(batch) for batch in files.batches()] == [list(range(10))]
    two = 2 * sum(leaf.nbytes for _, leaf in flatten(state_of(0)))
    batches = list(files.batches(enough=two))
    assert [client for batch in batches for client in batch] == list(range(10))
    assert max(map(len, batches)) == 2
    assert all(same(files[client], state) for batch in batches for client, state in batch.items())
    monkeypatch.setattr(state_files, "FILE_BYTES", two)
    assert set(StateFiles.of(files)) == set(StateFiles.of(dict(files))) == set(range(10))


def test_files_have_no_name_so_nothing_is_left_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = StateFiles()
    files.put({0: state_of(0)})
    assert stored_bytes(files)
    assert not list(tmp_path.iterdir())
    with tempfile.NamedTemporaryFile():  # which would be seen
        assert list(tmp_path.iterdir())


def test_files_are_closed_with_their_object(tmp_path):
    files = StateFiles()
    files.put({0: state_of(0)})
    gc.collect()  # what other tests left
    left_open = (tmp_path / "left_open").open("wb")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del files
        gc.collect()
        assert not caught
        del left_open  # which is noticed
        gc.collect()
    assert [entry.category for entry in caught] == [ResourceWarning]


def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    script = (
        "import os, signal, torch\n"
        "from graft.engines.state_files import StateFiles\n"
        "from graft.tensors.trees import Tree\n"
        "files = StateFiles()\n"
        "files.put({client: Tree(weight=torch.ones(1000)) for client in range(100)})\n"
        "print(len(files), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout.strip()) == (-9, "100"), ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_explained(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    files = StateFiles()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"cannot be kept in .*No space left.*TMPDIR"):
        files.put({0: state_of(0)})
