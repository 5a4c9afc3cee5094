"""What a client keeps, when it is killed, or its machine loses power, at any point of a round."""

import pytest
import torch

from graft.engines.kept_state import COMMITTED, PENDING, KeptState, StateMissing
from graft.errors import InputError
from graft.tensors.trees import Tree


def state(value):
    return Tree(model=torch.full((2, 3), float(value)))


def value_of(kept):
    return float(kept.state.model[0, 0])


def work(kept, round, after, value, request="first", attempt="a"):
    """A step that changes the state, whose answer leaves."""
    kept.enter(round, after, attempt)
    kept.state.update(state(value))
    kept.save(request, b"answer")


def again(folder):
    """The same client in another process."""
    return KeptState(state(0), folder)


@pytest.fixture
def kept(tmp_path):
    kept = KeptState(state(0), tmp_path)
    work(kept, 1, 0, 10)
    work(kept, 2, 1, 20)
    return kept


def test_a_killed_client_goes_on_in_the_open_round_and_commits_it(kept, tmp_path):
    restarted = again(tmp_path)
    assert (restarted.committed, restarted.open, restarted.answer) == (1, kept.open, b"answer")
    assert value_of(restarted) == 20
    restarted.settle(2)
    assert (value_of(again(tmp_path)), again(tmp_path).committed, again(tmp_path).open) == (20, 2, None)


def test_a_killed_client_goes_back_where_the_open_round_did_not_count(kept, tmp_path):  # noqa: ARG001
    restarted = again(tmp_path)
    restarted.settle(1)
    assert (value_of(restarted), value_of(again(tmp_path))) == (10, 10)


@pytest.mark.parametrize("damage", [lambda _: b"", lambda file: file[:-9], lambda file: file[:-8] + bytes(8)])
def test_after_a_power_failure_the_open_round_is_lost_and_all_before_it_is_there(kept, tmp_path, damage):  # noqa: ARG001
    pending = tmp_path / PENDING
    pending.write_bytes(damage(pending.read_bytes()))
    restarted = again(tmp_path)
    assert (value_of(restarted), restarted.committed, restarted.open) == (10, 1, None)
    with pytest.raises(StateMissing, match="that after round 1, not 2"):  # which the server hears, if that one counted
        restarted.settle(2)
    work(restarted, 3, 1, 30)
    assert value_of(again(tmp_path)) == 30


def test_a_committed_state_that_is_damaged_is_refused(kept, tmp_path):  # noqa: ARG001
    committed = tmp_path / COMMITTED
    committed.write_bytes(committed.read_bytes()[:-1] + b"\xff")
    with pytest.raises(InputError, match="committed is damaged"):
        again(tmp_path)


def test_a_step_that_changed_the_state_without_an_answer_is_committed_as_the_state_is(kept, tmp_path):
    kept.enter(2, 1, "a")
    kept.state.update(state(25))  # and then it failed
    kept.settle(2)
    assert (value_of(kept), value_of(again(tmp_path))) == (25, 25)
    assert not (tmp_path / PENDING).exists()
