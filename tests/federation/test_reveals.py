"""Declarations of what messages reveal are inherited, narrowed, and taken back."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from graft.federation.reveals import covering, declared
from graft.methods import METHODS
from graft.methods.dfedavgm import DFedAvgM
from graft.methods.dpsgd import DPSGD
from graft.methods.fedavg import FedAvg
from graft.methods.fedomd import FedOMD
from graft.testing import ContractError
from graft.testing.leaks import every_field_that_leaves_is_declared, observe
from graft.testing.toy import toy_graphs


@dataclass(frozen=True)
class Denies(FedAvg):
    """Sends a model, and says that it does not."""

    reveals: ClassVar = {"train/model": None}


def test_declaration_of_a_base_class_is_taken_back_by_none():
    assert {"train/model", "train/weight"} <= set(declared(FedAvg))
    assert set(declared(FedAvg)) - set(declared(Denies)) == {"train/model"}


def test_field_whose_declaration_was_taken_back_must_not_be_sent():
    with pytest.raises(ContractError, match=r"train/model.* leaves a client but is not declared"):
        every_field_that_leaves_is_declared(Denies())


@pytest.mark.parametrize("name", ["gossip", "osgp", "feddual", "dis_pfl"])
def test_peers_that_send_something_else_declare_no_shared_model(name):
    assert "share/model" not in declared(METHODS[name])
    assert "share/model" in declared(METHODS["pens"])


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (FedOMD(beta=0), {"train/model", "train/weight"}),
        (FedOMD(), set()),
        (DFedAvgM(), {"share/model"}),
        (DFedAvgM(bits=8), {"share_move/steps", "share_move/size"}),
        (DPSGD(), {"share/model"}),
        (DPSGD(mode="original"), {"share_untrained/model"}),
    ],
    ids=["fedomd without moments", "fedomd", "dfedavgm", "dfedavgm quantised", "dpsgd", "dpsgd original"],
)
def test_fields_with_a_condition_are_sent_where_it_holds_and_only_there(method, fields):
    table = declared(method)
    decided = {field for field, reveals in table.items() if reveals.when.startswith(("if beta", "if bits", "if mode"))}
    sent = {covering(table, leaf.field) for leaf in observe(method, toy_graphs(), rounds=1).sent}
    assert decided & sent == fields
