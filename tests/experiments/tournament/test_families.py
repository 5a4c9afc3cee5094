"""Who competes: the same search for all, rows that are what they are called, and who judges by validation labels."""

import pytest

from graft.data import default_root
from graft.errors import InputError
from graft.experiments.make_method import make_method
from graft.experiments.tournament.families import FAMILIES, RATES, TWITCH, judges
from graft.experiments.tournament.plan import plan_events
from graft.experiments.tuning.tune import open_trials
from graft.federation.method import judging_settings
from graft.methods import METHODS
from tests.experiments.tournament.conftest import PLAYED, TOY

OWN = [name for name in FAMILIES if FAMILIES[name] not in (TOY, PLAYED)]
SHARED = ("optimizer", "optimizer_state", "learning_rate", "weight_decay", "dropout", "epochs")


@pytest.mark.parametrize("name", OWN)
def test_all_methods_of_a_family_search_the_same_beside_their_own_fields(name):
    events = plan_events([name], ["cora"])
    spaces = [candidate.space for event in events for candidate in event.design.candidates()]
    shared = [field for field in SHARED if field not in FAMILIES[name].keep]
    assert spaces
    assert len({repr([space[field] for field in shared]) for space in spaces}) == 1
    assert all(space["learning_rate"] == RATES for space in spaces)
    assert not any(field in space for space in spaces for field in FAMILIES[name].keep)


@pytest.mark.parametrize("name", OWN)
def test_all_events_of_a_family_have_as_many_trials_and_the_same_seeds(name):
    named = [dataset for dataset in FAMILIES[name].datasets if dataset != TWITCH]  # whose files may not be here
    for event in plan_events([name], named, trials=7, seeds=(3, 4), final_seeds=2):
        assert (event.design.trials, list(event.design.seeds), list(event.design.final_seeds)) == (7, [3, 4], [5, 6])


def test_only_references_search_their_architecture():
    (event,) = plan_events(["general"], ["cora"], ["local", "fedavg", "centralised"])
    with open_trials(event.design) as trials:
        spaces = {label: subject.space for label, subject in trials.subjects.items()}
    assert {"models", "width"} <= set(spaces["centralised"])
    assert set(spaces["local"]) == set(spaces["fedavg"]) == set(SHARED)


def test_all_rows_whose_clients_send_a_model_beside_their_own_search_its_architecture():
    fields = {"fedgkc": "copilot", "fedgkc_paper": "copilot", "fml": "meme", "fedkd": "mentee", "trust": "proxy"}
    (event,) = plan_events(["architectures"], ["cora"])
    searched = {}
    for candidate in event.design.candidates():
        if field := fields.get(candidate.variant["method"]):
            searched[candidate.label] = set(candidate.space[field].choices)
    common = {"gcn", "sage", "sgc", "tag"}
    rows = ("fedgkc", "fedgkc-paper", "fml", "fml-all", "fedkd", "fedkd-all")
    assert {row: searched[row] for row in rows} == dict.fromkeys(rows, common)
    assert searched["trust"] == {*common, "gcn3"}  # its own default


def test_variant_keeps_what_makes_it_one():
    (event,) = plan_events(["played"], ["toy-a"], ["all", "train"])
    everything, training = event.design.candidates()
    assert everything.variant["settings"] == {"kd_nodes": "all"}
    assert "kd_nodes" not in everything.space
    assert "kd_nodes" in training.space
    assert (everything.label, training.label) == ("all", "train")


def test_leading_rows_are_rows():
    for family in FAMILIES.values():
        assert set(family.leading) <= {entry.label for entry in family.entrants}


@pytest.mark.skipif(not list(default_root().glob("Twitch/*.npz")), reason="the graphs of Twitch are not here")
def test_countries_are_clients_of_their_own():
    (event,) = plan_events(["general"], ["twitch"], ["fedavg"], clients=10)
    values = event.design.candidates()[0].variant
    assert len(values["graphs"]) == 5
    assert "clients" not in values
    assert values["metric"].startswith("auroc")


def test_what_does_not_take_part_is_refused():
    with pytest.raises(InputError, match=r"no family 'generals' \(did you mean 'general'"):
        plan_events(["generals"])
    with pytest.raises(InputError, match="no dataset 'mars'"):
        plan_events(["toy"], ["mars"])
    with pytest.raises(InputError, match="no method 'dpsgd'"):
        plan_events(["toy"], methods=["dpsgd"])


# Who reads validation labels.


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fml", {"answer": "best"}),
        ("fedgkc", {"gate": True}),
        ("fedgkc", {"gate": False, "teacher": "best"}),
        ("fedgkc", {"gate": False, "knowledge_from": "validation"}),
        ("fedgkc_paper", {"answer": "best"}),
        ("dfed_sst", {"search": 4}),
        *((name, {"search": 4}) for name in ("dfedavgm", "dpsgd", "feddual", "gossip", "osgp", "pens")),
        ("dis_pfl", {"search": 4, "density": 0.9}),
        ("pens", {"judge": "val", "chosen": 1, "first_phase": 1.0}),
    ],
)
def test_chosen_values_say_whether_a_method_judges(name, settings):
    def said(values, judge_on="validation"):
        own = vars(make_method(name, values))
        return judges({"method": name, "plug": "", "settings": own, "judge_on": judge_on})

    blind = {field: values[0] for field, values in judging_settings(METHODS[name]).items()}
    assert said({**blind, **settings})
    assert not said(blind)
    assert not said({**blind, **settings}, judge_on="training")


def test_method_with_a_plug_judges_as_its_host_does():
    made = make_method("ditto", {"choose": True}, "fedtad")
    experiment = {"method": "ditto", "plug": "fedtad", "settings": vars(made), "judge_on": "validation"}
    assert judges(experiment)
    assert not judges({**experiment, "settings": {**vars(made), "choose": False}})
