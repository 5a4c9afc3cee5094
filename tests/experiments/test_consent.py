"""The sheet that a party consents to names all that will leave, and an approval is of that sheet alone."""

from dataclasses import replace
from typing import ClassVar

import pytest

from graft.engines.forms import StepForm
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.errors import InputError
from graft.experiments.consent import (
    WIDTH,
    consent_hash,
    consent_json,
    consent_rows,
    consent_sheet,
    describe_consent,
)
from graft.federation.method import step
from graft.federation.reveals import covering, declared
from graft.files import canonical
from graft.methods import METHODS
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedtad import FedTAD
from graft.methods.pens import PENS
from graft.tensors.trees import Tree
from graft.testing.leaks import observe
from graft.testing.toy import CLASSES, toy_graphs

SHORT = {"fedsage_plus": {"generator_epochs": 1, "shared_epochs": 1, "rank": 2}}


def sheet_of(method, name="method", clients=3, rounds=20, facts=None, **rehearsal):
    forms = rehearse(Rehearsal(method, name, clients, 6, CLASSES, width=8, rounds=rounds, **rehearsal))
    return consent_sheet(method, name, forms, rounds=rounds, facts=facts)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"centralised"}))
def test_a_sheet_names_all_that_leaves_and_fits_a_terminal(name):
    method = METHODS[name](**SHORT.get(name, {}))
    sheet = sheet_of(method, name, models=[method.experiment_defaults.get("models", "gcn")])
    text, table = describe_consent(sheet), declared(method)
    assert max(map(len, text.splitlines())) <= WIDTH
    rows = {f"{row.step}/{row.field}" for row in sheet.rows}
    assert rows <= table.keys()
    assert all(row in text for row in rows)
    observed = observe(method, toy_graphs(), rounds=1)
    assert {covering(table, sent.field) for sent in observed.sent} - rows == set()


def test_a_sheet_says_what_is_sent_in_numbers_and_bytes():
    sheet = sheet_of(FedAvg(), "fedavg", facts={"server": "hub", "parties": 3})
    model = next(row for row in sheet.rows if row.field == "model")
    numbers = 6 * 8 + 8 + 8 * 8 + 8 + 8 * CLASSES + CLASSES
    assert (model.step, model.numbers, model.bytes, model.leaves, model.model) == (
        "train",
        numbers,
        4 * numbers,
        True,
        True,
    )
    text = describe_consent(sheet)
    assert f"train/model: {numbers} numbers, {4 * numbers} bytes" in text
    assert "Clients train copies of one model; the server averages them." in text
    assert "Server    hub" in text
    assert "Rounds    20" in text
    assert "your nodes, edges, features and labels themselves" in text
    assert "the architecture of your model" not in text


def test_fields_that_are_logged_stay_and_so_does_the_architecture():
    sheet = sheet_of(FedGKC(beta=0.1), "fedgkc")
    assert {row.field for row in sheet.rows if not row.leaves} == {"strength", "clarity", "terms"}
    leaves, stays = describe_consent(sheet).split("What stays here")
    assert "train/terms" in stays
    assert "train/terms" not in leaves
    assert "the architecture of your model" in stays
    assert "  * beta = 0.1, by default 0.0" in leaves
    assert "    alpha = 0.6\n" in leaves


def test_of_peers_only_what_others_hear_leaves():
    sheet = sheet_of(PENS(), "pens")
    assert {f"{row.step}/{row.field}" for row in sheet.rows if row.leaves} == {
        "share/model",
        "sample/links",
        "choose/links",
    }
    assert "score/correct" in describe_consent(sheet).split("What stays here")[1]


def test_data_that_leave_as_they_are_are_warned_of():
    sheet = sheet_of(FedTAD(distil_on="real", reveal_data=True, reliability="equal"), "fedtad")
    text = describe_consent(sheet)
    assert "WARNING: with these settings the method sends data of yours as they are" in text
    assert "(!) disclose/edges: (2, any), as much as depends on your data" in text
    assert "features and labels themselves" not in text
    assert "WARNING" not in describe_consent(sheet_of(FedTAD(), "fedtad"))


class SendsMoreThanItSays(FedAvg):
    @step
    def train(self, fleet, model):
        return Tree(**super().train(fleet, model), edges=fleet.graph.degree.sum(1))


class SaysWhatItSends(SendsMoreThanItSays):
    reveals: ClassVar = {"train/edges": declared(FedAvg)["train/weight"]}


def test_nobody_can_consent_to_what_is_not_declared():
    with pytest.raises(InputError, match="SendsMoreThanItSays sends train/edges, which it does not declare"):
        sheet_of(SendsMoreThanItSays())
    assert "edges" in {row.field for row in sheet_of(SaysWhatItSends()).rows}


def test_an_approval_is_of_one_sheet_alone():
    approved = sheet_of(FedGKC(), "fedgkc", facts={"server": "hub"})
    assert consent_hash(approved) == consent_hash(sheet_of(FedGKC(), "fedgkc", facts={"server": "hub"}))
    assert canonical(consent_json(approved)) == canonical(consent_json(replace(approved)))
    train = approved.forms["train"]
    told = {**approved.forms, "train": replace(train, message={**train.message, "more": train.message["head/bias"]})}
    others = [
        sheet_of(FedGKC(alpha=0.7), "fedgkc", facts={"server": "hub"}),
        sheet_of(FedGKC(), "fedgkc", facts={"server": "another"}),
        sheet_of(FedGKC(), "fedgkc", facts={"server": "hub"}, rounds=21),
        sheet_of(FedGKC(), "fedgkc", facts={"server": "hub"}, metrics=("macro_f1",)),
        replace(approved, forms=told),
        replace(approved, forms={**approved.forms, "peek": StepForm({}, {})}),
        replace(approved, rows=approved.rows[1:]),
    ]
    hashes = {consent_hash(sheet) for sheet in (approved, *others)}
    assert len(hashes) == 1 + len(others)


def test_rows_are_in_the_order_of_the_forms():
    forms = rehearse(Rehearsal(FedAvg(), "fedavg", 3, 6, CLASSES))
    assert list(dict.fromkeys(row.step for row in consent_rows(FedAvg(), forms))) == sorted(forms)
