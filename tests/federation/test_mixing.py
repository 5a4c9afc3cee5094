"""How far peers go from their own model to the mean: cases worked out by hand, the same for every method that mixes."""

import pytest
import torch

from graft.errors import InputError
from graft.federation.fleet import Fleet
from graft.federation.method import find_step
from graft.federation.peers import MixingMethod, PeerMethod, interpolate
from graft.federation.topologies import Topology
from graft.fields import search_spaces
from graft.methods import METHODS
from graft.methods.dfed_sst import DFedSST, DFedSSTPaper
from graft.methods.dfedavgm import DFedAvgM
from graft.methods.dis_pfl import DisPFL
from graft.methods.dpsgd import DPSGD
from graft.methods.feddual import FedDual
from graft.methods.gossip import Gossip
from graft.methods.osgp import OSGP
from graft.methods.pens import PENS
from graft.tensors.trees import Tree
from tests.methods.line import line, places
from tests.toy import run_rounds, toy_setup

STARTS = [[0.0], [8.0]]  # two peers that stand still, with their mean at 4
METHODS_THAT_MEET = {
    "dpsgd": (DPSGD, {}),
    "dpsgd-original": (DPSGD, {"mode": "original"}),
    "dpsgd-dispfl": (DPSGD, {"mode": "dispfl"}),
    "gossip": (Gossip, {"sources": 1}),
    "osgp": (OSGP, {"delay": 0}),
    "dfedavgm": (DFedAvgM, {}),
    "pens": (PENS, {"first_phase": 0.0}),
    "pens-trying": (PENS, {"first_phase": 1.0}),
    "feddual": (FedDual, {}),
    "dis_pfl": (DisPFL, {"density": 1.0}),
    "dfed_sst": (DFedSST, {}),
}


@pytest.fixture
def wishes(monkeypatch):
    """Validation nodes like a model the better the nearer it is to a place of each peer's choice."""
    chosen = {}

    def liking(fleet, logits):
        wanted = torch.tensor([chosen[client] for client in fleet.clients])
        return (-100 * (logits[:, 0, 0] - wanted).abs()).long()

    monkeypatch.setattr(Fleet, "count_validated", liking)
    return chosen


def stand(finished):
    """Where every peer is."""
    return places(finished).flatten().tolist()


def met(name, search):
    """Two peers after one round in which they hear each other; DFedAvgM alone changes how they train, and they rest."""
    kind, settings = METHODS_THAT_MEET[name]
    return run_rounds(line(kind(**settings, search=search), STARTS, topology=Topology("complete")), rounds=1)


@pytest.mark.parametrize("name", METHODS_THAT_MEET)
def test_a_peer_goes_as_far_towards_the_mean_as_its_validation_nodes_like(name, wishes):
    wishes |= {0: 2.2, 1: 100.0}  # of 0, 1, 2, 3 and 4, 2 is the nearest; of 8, 7, 6, 5 and 4, 8
    finished = met(name, 4)
    assert stand(finished) == [2, 8]
    (way,) = [value.tolist() for key, value in finished.records.items() if key.endswith("/way")]
    assert way == [0.5, 0]
    wishes |= {0: 4.0, 1: 5.9}
    assert stand(met(name, 4)) == [4, 6]
    assert stand(met(name, 1)) == [4, 4]  # of 8 and 4 alone, 5.9 is nearer to 4


@pytest.mark.parametrize("name", METHODS_THAT_MEET)
def test_without_points_to_try_every_peer_takes_the_mean_and_says_nothing(name, wishes):
    wishes |= {0: 0.0, 1: 8.0}
    finished = met(name, 0)
    assert stand(finished) == [4, 4]
    assert not [key for key in finished.records if key.endswith("/way")]
    assert stand(met(name, 2)) == [0, 8]


def test_of_points_that_are_liked_alike_the_nearest_to_the_mean_is_taken(wishes):
    wishes |= {0: 1.5, 1: 6.5}  # as far from 1 as from 2, and from 7 as from 6
    assert stand(met("dpsgd", 4)) == [2, 6]


def test_every_method_that_mixes_has_the_search_and_only_dfed_sst_has_it_on():
    mixing = {name for name in METHODS.targets if issubclass(METHODS[name], MixingMethod)}
    assert mixing == {name for name in METHODS.targets if issubclass(METHODS[name], PeerMethod)}
    assert {name: METHODS[name]().search for name in mixing} == {name: 4 * (name == "dfed_sst") for name in mixing}
    offered = {name for name in mixing if "search" in search_spaces(METHODS[name])}
    assert offered == mixing - {"dfed_sst_paper"}
    assert search_spaces(DPSGD)["search"].choices == (0, 4)
    assert DFedSSTPaper().search == 0
    with pytest.raises(InputError, match="search is -1"):
        DPSGD(search=-1)


def test_a_step_is_found_though_a_setting_has_its_name():
    function, _ = find_step(DisPFL(search=3), "search")
    assert function.__func__ is DisPFL.search
    with pytest.raises(ValueError, match="'density' is not a step"):
        find_step(DisPFL(), "density")


def test_a_peer_of_osgp_pushes_the_model_that_it_stays_with(wishes):
    wishes |= {0: 0.0, 1: 100.0}
    state = met("osgp", 4).engine.state()
    assert [float(state[peer].held.sum.x / state[peer].held.mass) for peer in (0, 1)] == [0, 8]
    assert [float(entry.held.sum.x / entry.held.mass) for entry in met("osgp", 0).engine.state().values()] == [4, 4]


def test_weights_outside_the_mask_stay_zero_on_the_way():
    finished = run_rounds(toy_setup(DisPFL(search=4)), rounds=3)
    for peer in range(3):
        state = finished.client(peer)
        for path, mask in state.mask.items():
            for name, selected in mask.items():
                assert not (state.model[path][name] * ~selected).any()
                assert (state.model[path][name] * selected).any()


def test_the_ends_of_the_way_are_the_models_themselves():
    own, mean = Tree(w=torch.tensor([[1.0], [0.1]])), Tree(w=torch.tensor([[3.0], [0.7]]))
    assert interpolate(own, mean, torch.tensor([0.0, 1.0])).w.tolist() == [[1.0], [pytest.approx(0.7)]]
    assert interpolate(own, mean, torch.tensor([0.5, 0.5])).w.tolist() == [[2.0], [pytest.approx(0.4)]]
    assert torch.equal(interpolate(own, mean, torch.ones(2)).w, mean.w)
