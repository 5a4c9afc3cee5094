"""What a few rounds on made-up clients tell of the messages of a real federation."""

import pytest

from graft.engines.forms import FieldForm, differences
from graft.engines.rehearsal import Rehearsal, rehearse
from graft.errors import InputError
from graft.federation.method import step
from graft.federation.plug import plugged
from graft.methods import METHODS, PLUGS
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC
from graft.methods.fedgta import FedGTA
from graft.methods.fedkd import FedKD
from graft.methods.fedomd import FedOMD
from graft.methods.fedtad import FedTAD
from graft.methods.lg_fedavg import LGFedAvg
from graft.methods.pens import PENS
from graft.tensors.trees import Tree
from graft.testing.toy import CLASSES, join_graphs, toy_graphs, toy_setup, with_weights
from tests.engines.test_forms import rehearsal_of, run_checked


@pytest.mark.parametrize("clients", [2, 10])
def test_sizes_follow_the_clients_of_the_real_federation_and_free_ones_the_data(clients):
    forms = rehearse(Rehearsal(PENS(), "pens", clients, 6, CLASSES))
    assert forms["sample"].reply["links"].shape == (clients,)
    assert forms["choose"].reply["links"].shape == (clients,)  # asked in late rounds alone
    assert forms["mix"].message["sent/model/head/bias"].shape == (None, CLASSES)
    assert (forms["share"].audience, forms["mix"].hears, forms["sample"].audience) == ("peers", "share", "peers")
    assert {step for step, form in forms.items() if form.audience == "nobody"} == {
        *("count", "mix", "score", "score_trained", "train", "try_out"),
    }


def test_methods_that_need_all_data_in_one_place_are_refused():
    with pytest.raises(InputError, match=r"'centralised' needs the data of all clients in one place"):
        rehearse(Rehearsal(METHODS["centralised"](), "centralised", 3, 6, CLASSES))


def test_a_party_that_keeps_its_architecture_to_itself_finds_the_forms_of_the_server():
    server = rehearse(Rehearsal(FedGKC(), "fedgkc", 5, 6, CLASSES))
    for model in ("gat", "gin3", "sgc", "mlp"):
        assert rehearse(Rehearsal(FedGKC(), "fedgkc", 5, 6, CLASSES, models=[model])) == server
    # What has a row for every feature: a TAG's maps of the node itself and of one and two steps, a GCN's of all in one.
    for copilot, maps in (("tag", ("hop0", "hop1", "hop2")), ("gcn", ("weight",))):
        server, other = (rehearse(Rehearsal(FedGKC(copilot=copilot), "fedgkc", 5, f, CLASSES)) for f in (6, 7))
        assert sorted(differences(server, other)) == sorted(
            [f"step 'train': {part}layer0/{name}'" for part in ("message '", "reply 'copilot/") for name in maps]
        )


class SendsItsEncoder(LGFedAvg):
    """A method whose replies look as the client's architecture does."""

    def round(self, server, clients):  # noqa: ARG002
        clients.ask(self.train)

    @step
    def train(self, fleet, shared=None):  # noqa: ARG002
        return Tree(model=fleet.state.model)


def test_fields_that_depend_on_the_architecture_of_a_client_come_out_as_such():
    fields = rehearse(Rehearsal(SendsItsEncoder(), "own", 3, 6, CLASSES, models=["gcn", "sage"]))["train"].reply
    assert not fields["model/head/weight"].by_model
    assert (
        {path for path, form in fields.items() if form.by_model}
        == {path for path, form in fields.items() if not form.always}
        != set()
    )


def test_one_architecture_is_rehearsed_where_settings_want_one():
    forms = rehearse(Rehearsal(LGFedAvg(share="all"), "lg_fedavg", 3, 6, CLASSES, models=["gcn"]))
    assert "shared/layer0/weight" in forms["train"].reply
    with pytest.raises(InputError, match="head = linear"):
        rehearse(Rehearsal(LGFedAvg(), "lg_fedavg", 3, 6, CLASSES, head="conv"))


@pytest.mark.parametrize("host", [FedAvg, FedGTA, FedOMD])
def test_plugs_are_rehearsed_with_their_hosts(host):
    method = plugged(host, PLUGS["fedtad"])()
    setup = toy_setup(method, models=host.experiment_defaults.get("models", "gcn"))
    forms = rehearse(rehearsal_of(setup))
    assert "tell_reliability" in run_checked(setup, forms, rounds=2).steps


def test_data_that_a_method_asks_for_are_marked_and_accepted_in_every_form():
    method = FedTAD(distil_on="real", reveal_data=True, reliability="equal")
    parts = toy_graphs(3, sparse=True)
    weighted = [with_weights(part, 1) for part in toy_graphs(3)]
    for federation in (join_graphs(parts), join_graphs(weighted)):
        setup = toy_setup(method, federation=federation)
        forms = rehearse(rehearsal_of(setup))
        reply = forms["disclose"].reply
        assert all(field.raw for field in reply.values())
        assert reply["edges"].shape == (2, None)
        assert (reply["values"].shape, reply["values"].always) == ((None,), False)
        run_checked(setup, forms, rounds=1)
    assert not any(
        field.raw for form in rehearse(Rehearsal(FedAvg(), "fedavg", 3, 6, 3)).values() for field in form.reply.values()
    )


def test_updates_of_full_rank_and_of_none_have_a_form():
    forms = rehearse(Rehearsal(FedKD(), "fedkd", 3, 30, CLASSES, width=8))
    reply = forms["send"].reply
    assert reply["change/layer0/weight"].unless == "change/layer0/weight/left"
    assert reply["change/layer0/weight/right"] == FieldForm(
        (None, 8), "float32", unless="change/layer0/weight", tied="change/layer0/weight/left"
    )
    assert reply["change/head/bias"] == FieldForm((CLASSES,), "float32")


def test_only_metrics_may_be_undefined():
    for name in ("fedavg", "fedgkc", "fedproto", "dfed_sst"):
        method = METHODS[name]()
        forms = rehearse(Rehearsal(method, name, 3, 6, CLASSES, metrics=("macro_f1", "ece")))
        undefined = {
            f"{step}/{path}" for step, form in forms.items() for path, field in form.reply.items() if not field.finite
        }
        assert undefined == {f"{step}/values" for step in forms if step.startswith("measure")}
        plain = rehearse(Rehearsal(method, name, 3, 6, CLASSES))
        assert plain.keys() == {step for step in forms if not step.startswith("measure")}
