"""The contract that every method in the table keeps; a new method is tested here by being in the table."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graft.methods
from graft.federation.plug import plugged
from graft.federation.reveals import DATA, declared
from graft.methods import METHODS, PLUGS
from graft.methods.adafgl import AdaFGL
from graft.methods.fedavg import FedAvg
from graft.methods.fedsage_plus import FedSagePlus
from graft.testing import GPU_CLAIMS, claims, leaks
from graft.testing.leaks import SIZES, observe
from graft.testing.toy import toy_graphs
from tests.contract import contract_method

SMALL = FedSagePlus(
    hidden=1.0,
    slots=2,
    latent=8,
    encoder_width=8,
    rank=4,
    generator_epochs=6,
    shared_epochs=2,
    generator_learning_rate=0.01,
)
# Methods that are checked with other settings than their defaults.
SETTINGS = {
    "adafgl": AdaFGL(extractor_share=0.01),  # one round of the first step; the others are of the second
    "fedsage_plus": SMALL,  # forty epochs of a large generator in every run would take half of the time of all methods
    "fedtgp": contract_method("fedtgp"),
    "fgssl": contract_method("fgssl"),
}


def case(name, claim):
    needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    marks = needs_gpu if claim in GPU_CLAIMS else []
    return pytest.param(name, claim, id=f"{name}-{claim.__name__}", marks=marks)


@pytest.mark.parametrize(
    ("name", "claim"), [case(name, claim) for name in sorted(METHODS) for _, claim in claims(gpu=True)]
)
def test_contract(name, claim):
    claim(SETTINGS.get(name, name))


def test_generated_neighbours_and_their_gradients_are_as_fedsage_plus_declares():
    generates = replace(SMALL, generator_learning_rate=0.1)  # with less nothing is generated that others could judge
    sent = observe(generates, toy_graphs(sizes=SIZES), rounds=1).sent
    filled = {leaf.field for leaf in sent if leaf.client == 0 and leaf.leaf.numel()}
    assert {"imagine/made", "imagine/node", "judge/gradient", "mend/generated"} <= filled
    leaks.every_field_that_leaves_is_declared(generates)
    leaks.fields_depend_on_what_they_declare(generates)
    leaks.no_message_holds_raw_data(generates)


@pytest.mark.parametrize("plug", sorted(PLUGS))
def test_what_a_plug_reveals_is_declared_with_its_host(plug):
    fields = declared(plugged(FedAvg, PLUGS[plug]))
    assert {"train/model", "tell_reliability/norm", "disclose/features"} <= fields.keys()
    assert fields["disclose/features"].raw
    assert not any(reveals.raw for reveals in declared(FedAvg).values())


def test_declarations_name_data_that_there_is():
    for name in METHODS:
        for field, reveals in declared(METHODS[name]).items():
            assert set(reveals.depends_on) <= set(DATA), (name, field)


def test_every_file_and_folder_of_methods_is_in_the_table():
    folder = Path(graft.methods.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    folders = {file.parent.name for file in folder.glob("*/__init__.py")}
    assert files | folders == {kind.__module__.split(".")[2] for kind in METHODS.values()}
