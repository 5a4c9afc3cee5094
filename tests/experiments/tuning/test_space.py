"""What a tuning tries: read from methods without importing them, and changed by hand."""

import subprocess
import sys

import pytest

from graft.errors import InputError
from graft.experiments.experiment import Experiment
from graft.experiments.make_method import make_method
from graft.experiments.tuning.design import Design
from graft.experiments.tuning.space import (
    OF_REFERENCES,
    SEARCHABLE,
    Changes,
    declared_space,
    parse_changes,
    parse_search,
    parse_space,
    with_values,
)
from graft.experiments.tuning.subject import examine
from graft.federation.plug import takes_plugs
from graft.fields import Search, search_spaces
from graft.methods import METHODS, PLUGS
from graft.models import build_model
from graft.tensors.trees import flatten
from tests.toy import run_rounds, toy_setup

SERVER = {"server_rate", "server_momentum", "server_tau"}  # searched where the server has an optimiser that reads them
TRAINING = {"dropout", "epochs", "optimizer", "learning_rate", "weight_decay", "optimizer_state", *SERVER}
OF_A_SERVER = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")  # the settings are those of its optimiser
WITHOUT_SETTINGS = ("fedavg", "fedbn", "fedgcn", "fedmlp", "loc_gcn", "majority", *OF_A_SERVER)
SETTINGS_DEFINE_IT = ("fednova", "lg_fedavg")  # or trade accuracy for bytes


def candidate(method="fedprox", *, space=(), fix=(), search=(), **values):
    (made,) = Design([method], values=values, changes=parse_changes(space, fix, search)).candidates()
    return made


@pytest.mark.parametrize("name", sorted(METHODS))
def test_space_read_from_the_source_is_that_of_the_class(name):
    wanted = {**search_spaces(Experiment), **OF_REFERENCES.get(name, {}), **search_spaces(METHODS[name])}
    assert declared_space(name) == wanted


@pytest.mark.parametrize("name", sorted(METHODS))
def test_method_searches_the_optimiser_and_most_search_more(name):
    own = set(declared_space(name)) - TRAINING
    assert set(declared_space(name)) >= TRAINING
    assert bool(own) == (name not in (*WITHOUT_SETTINGS, *SETTINGS_DEFINE_IT))


@pytest.mark.parametrize("plug", sorted(PLUGS))
def test_space_of_a_plug_is_added_to_that_of_its_host(plug):
    both = declared_space("fedprox", plug)
    assert {"mu", "iterations", "learning_rate"} <= set(both)
    assert takes_plugs(METHODS["fedprox"])
    kind = type(make_method("fedprox", {}, plug))
    assert {name: space for name, space in both.items() if name not in TRAINING} == search_spaces(kind)


def test_object_has_the_space_of_its_class():
    assert declared_space(METHODS["fedprox"](mu=0.5)) == declared_space("fedprox")
    assert declared_space(METHODS["centralised"](edges="inside")) == declared_space("centralised")


@pytest.mark.parametrize("name", ["centralised", "local"])
def test_references_search_architecture_depth_and_width_and_no_other_method_does(name):
    space = candidate(name).space
    assert {"gcn", "gcn4", "gat", "sage", "gin", "sgc", "mlp"} < set(space["models"].choices)
    assert "width" in space
    assert not {"models", "width"} & set(candidate("fedavg").space)
    assert not {"models", "width"} & set(candidate("loc_gcn").space)  # which is about one architecture
    kept = candidate(name, fix=["models", "width=16"])
    assert set(kept.space) == TRAINING
    assert candidate(name, space=["models=gcn,sage"]).space["models"] == Search(choices=("gcn", "sage"))
    for model in space["models"].choices:
        for width in space["width"].choices:
            for head in ("linear", "conv"):
                build_model(model, 5, 3, width=width, head=head)


@pytest.mark.parametrize(
    ("name", "field"), [("fedgkc", "copilot"), ("fml", "meme"), ("fedkd", "mentee"), ("trust", "proxy")]
)
def test_all_architectures_that_are_tried_for_a_model_that_travels_train(name, field):
    space = declared_space(name)[field]
    assert {"gcn", "sage", "sgc", "tag"} <= set(space.choices)
    assert getattr(METHODS[name](), field) in space.choices
    for choice in space.choices:
        method = make_method(name, {field: choice})
        assert method.second_model() == choice
        finished = run_rounds(toy_setup(method, models="gcn,gat"), rounds=2)
        assert all(leaf.isfinite().all() for client in range(3) for _, leaf in flatten(finished.client(client)))


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("learning_rate=0.001..0.1:log", Search(0.001, 0.1, log=True)),
        ("epochs=1..5", Search(1, 5)),
        ("weight-decay=0..1e-3", Search(0, 1e-3)),
        ("optimizer=adam, sgd", Search(choices=("adam", "sgd"))),
        ("mu=0,0.01,1", Search(choices=(0, 0.01, 1))),
        ("gate=true,false", Search(choices=(True, False))),
    ],
)
def test_space_is_typed_as_it_is_listed(text, space):
    name, parsed = parse_space(text)
    assert parsed == space
    assert name == text.partition("=")[0].replace("-", "_")
    assert parse_search(str(space)) == space


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("learning_rate", "should read name=low..high"),
        ("=1..2", "should read name=low..high"),
        ("mu=1..0", "a greater one"),
        ("mu=0..1:log", "above 0"),
        ("mu=0.1..1:linear", "may be ':log'"),
        ("mu=a..b", "finite number"),
        ("mu=1", "several choices"),
        ("mu=1,1", "each of them once"),
    ],
)
def test_space_that_cannot_be_is_refused(text, reason):
    with pytest.raises(InputError, match=reason):
        parse_space(text)


def test_spaces_are_changed_fixed_and_narrowed_by_hand():
    changed = candidate(space=["mu=0.1..1", "width=16..64"], fix=["optimizer,epochs=5"])
    assert changed.space["mu"] == Search(0.1, 1)
    assert changed.space["width"] == Search(16, 64)
    assert {"optimizer", "epochs"}.isdisjoint(changed.space)
    assert changed.variant["epochs"] == 5
    assert "optimizer" not in changed.variant
    assert set(candidate(search=["mu"]).space) == {"mu"}
    assert set(candidate(search=["mu"], space=["width=16..64"]).space) == {"mu", "width"}
    assert candidate(fix=["mu=0.5"]).variant["settings"] == {"mu": 0.5}


def test_what_was_set_is_where_a_tuning_starts_from_and_is_searched():
    design = Design(["fedprox"], values={"learning_rate": 0.02}, settings={"mu": 0.3})
    (made,) = design.candidates()
    assert made.variant["learning_rate"] == 0.02
    assert made.variant["settings"] == {"mu": 0.3}
    assert {"learning_rate", "mu"} <= set(made.space)


def test_setting_of_some_methods_is_for_these_alone():
    prox, avg = Design(["fedprox", "fedavg"], settings={"mu": 0.3}, changes=Changes(keep=["mu"])).candidates()
    assert prox.variant["settings"] == {"mu": 0.3}
    assert avg.variant["settings"] == {}
    assert set(prox.space) == set(avg.space) == TRAINING


@pytest.mark.parametrize(
    ("method", "values", "searched"),
    [
        ("fedavg", {}, set()),
        ("fedavg", {"server_optimizer": "sgd"}, {"server_rate"}),
        ("fedavgm", {}, {"server_rate", "server_momentum"}),
        ("fedadam", {}, SERVER),
        ("fedadam", {"server_optimizer": "none"}, set()),
    ],
)
def test_settings_of_the_server_are_searched_where_its_optimiser_reads_them(method, values, searched):
    subject = examine(candidate(method, **values), Changes(), seed=0)
    assert set(subject.space) & SERVER == set(subject.candidate.space) & SERVER == searched
    assert set(subject.space) >= TRAINING - SERVER


def test_settings_of_the_server_are_searched_beside_the_optimiser_itself():
    both = candidate("fedavg", space=["server_optimizer=none,adam"])
    assert set(examine(both, Changes(), seed=0).space) >= SERVER
    with pytest.raises(InputError, match="nothing to search for fedavg"):
        examine(candidate("fedavg", search=["server_rate"]), Changes(), seed=0)


def test_plug_is_named_after_its_host():
    host, plugged = Design(["fedavg", "fedavg+fedtad"]).candidates()
    assert (host.label, plugged.label) == ("fedavg", "fedavg+fedtad")
    assert plugged.variant["plug"] == "fedtad"
    assert "iterations" in plugged.space
    assert "iterations" not in host.space


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"space": ["nu=0..1"]}, "There is no field 'nu' to tune"),
        ({"fix": ["muu=1"]}, "did you mean 'mu'"),
        ({"search": ["width"]}, "width has no search space of its own"),
        ({"space": ["rounds=10..100"]}, "rounds cannot be searched: data, scores, rounds and seeds"),
        ({"space": ["split=a,b"]}, "split cannot be searched"),
        ({"space": ["mu=0..1"], "fix": ["mu"]}, "mu is to be fixed and to be searched"),
        ({"fix": [",".join([*TRAINING, "mu"])]}, "nothing to search for fedprox"),
    ],
)
def test_changes_that_cannot_be_are_refused(changes, reason):
    with pytest.raises(InputError, match=reason):
        candidate(**changes)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"methods": ["fedprox", "fedprox"]}, "'fedprox' is named twice"),
        ({"methods": ["fedprax"]}, "Unknown method 'fedprax' .*did you mean 'fedprox'"),
        ({"methods": ["fedavg+fedtadd"]}, "Unknown plug"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["fedavg"], "trials": 0}, "trials is 0"),
        ({"methods": ["fedavg"], "seeds": ()}, "at least one seed"),
        ({"methods": ["fedavg"], "seeds": (0, 1), "final_seeds": (1, 2)}, "Seed 1 is tuned with"),
        ({"methods": ["fedavg"], "settings": {"mu": 1.0}}, "No method of this tuning has a setting 'mu'"),
        ({"methods": ["fedavg"], "values": {"dataset": "coraa"}}, "coraa"),
    ],
)
def test_design_that_cannot_be_is_refused(arguments, reason):
    with pytest.raises(InputError, match=reason):
        Design(**arguments).candidates()


def test_searchable_fields_decide_neither_about_data_nor_about_scores():
    assert {"learning_rate", "width", "models", "participation", "loss"} <= set(SEARCHABLE)
    assert {"seed", "rounds", "split", "dataset", "metric", "patience", "device", "method"}.isdisjoint(SEARCHABLE)


def test_values_go_to_the_experiment_or_to_the_settings():
    variant = with_values({"epochs": 1, "settings": {"nu": 2}}, {"epochs": 3, "mu": 1.0, "settings.width": 5})
    assert variant == {"epochs": 3, "settings": {"nu": 2, "mu": 1.0, "width": 5}}


def test_what_was_typed_is_checked_without_pytorch():
    code = (
        "import sys\nfrom graft.cli.main import app\n"
        "try: app(['tune', 'fedprox,fedgkc', '--space', 'nu=0..1'], standalone_mode=False)\n"
        "except BaseException: pass\n"
        "print('torch' in sys.modules, 'optuna' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "There is no field 'nu' to tune" in finished.stderr
    assert finished.stdout.split()[-2:] == ["False", "False"]
