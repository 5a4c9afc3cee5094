"""federation.toml: what it may say, what it may not, and what its hash stands for."""

import tomllib
from dataclasses import fields, replace

import pytest
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.data.example_banks import write_banks
from graft.data.party import party_federation, read_party
from graft.engines.wire import Patience
from graft.errors import InputError
from graft.experiments.experiment import Experiment
from graft.experiments.federation_file import FederationFile, parse_federation, read_federation
from graft.experiments.federation_rules import NO_MEANING, Limits, RoundRules
from graft.experiments.federation_text import federation_text, write_federation
from graft.experiments.given import Given
from graft.experiments.parties_setup import own_experiment, own_setup
from graft.experiments.run import run_experiment
from graft.federation.fleet import initial_weights
from graft.federation.peers import PeerMethod
from graft.methods import METHODS
from graft.methods.fedgkc import FedGKC
from graft.tensors.trees import select_clients
from tests.toy import gap, same

BANKS = """
name = "banks"
server = "coordinator"
address = "127.0.0.1:7447"
parties = ["bank_a", "bank_b", "bank_c"]
classes = ["yes", "no"]
positive = "yes"

[experiment]
method = "fedgkc"
rounds = 50
seed = 7
split = "60/20/20"
metric = "f1"

[settings]
alpha = 0.5

[schema]
label = "fraud"
numeric = ["balance", "turnover"]
categorical = ["channel", "branch"]
date = ["opened"]
hash = 4
separator = ","

[rounds]
minimum = 2
timeout = 120
quorum = 0.6
grace = 5

[limits]
max_norm = 10
"""
PEERS = """
name = "clinics"
classes = 3
features = ["age", "weight"]

[peers]
clinic_a = "127.0.0.1:7451"
clinic_b = "[::1]:7452"
clinic_c = "clinic-c.example:7453"

[experiment]
method = "dfed_sst"
"""


def parse(text=BANKS, **changes):
    """The federation of a text with some keys, or keys of tables as table__key, changed; None takes one away."""
    content = tomllib.loads(text)
    for path, value in changes.items():
        table, _, key = path.rpartition("__")
        place = content.setdefault(table, {}) if table else content
        place.pop(key, None)
        if value is not None:
            place[key] = value
    return parse_federation(content, "banks.toml")


def test_a_file_becomes_an_experiment_an_agreement_and_rules(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(BANKS)
    file = read_federation(path)
    assert (file.name, file.server, file.parties) == ("banks", "coordinator", ("bank_a", "bank_b", "bank_c"))
    assert file.has_server
    experiment = file.experiment
    assert (experiment.method, experiment.rounds, experiment.seed, experiment.clients) == ("fedgkc", 50, 7, 3)
    assert experiment.partition == "own"
    assert file.method == FedGKC(alpha=0.5)
    agreement = file.agreement
    assert (agreement.classes, agreement.positive, agreement.split, agreement.seed) == (
        ("yes", "no"),
        "yes",
        "60/20/20",
        7,
    )
    assert agreement.width == len(agreement.feature_names) == 16
    assert file.rounds == RoundRules(minimum=2, timeout=120, quorum=0.6, grace=5)
    assert file.limits == Limits(max_norm=10)
    assert file.number("bank_b") == 1
    with pytest.raises(InputError, match="'bank_x' is no party of federation 'banks': there are bank_a"):
        file.number("bank_x")


def test_parties_read_their_own_files_by_the_agreement_of_the_file(tmp_path):
    rows = [f"{day},{day},{2 * day},app,north,2024-01-{day:02},{'yes' if day % 3 else 'no'}" for day in range(1, 13)]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,balance,turnover,channel,branch,opened,fraud", *rows]) + "\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n2,3\n")
    party = read_party(tmp_path, parse().agreement, "bank_b", 1)
    assert party.graph.features == parse().agreement.width
    assert party.preparation.positive_class == 0


def test_peers_have_addresses_and_no_server():
    file = parse(PEERS)
    assert file.parties == ("clinic_a", "clinic_b", "clinic_c")
    assert not file.has_server
    assert file.server == ""
    assert file.agreement.class_count == 3
    assert file.agreement.feature_names == ("age", "weight")


def test_what_nobody_says_has_a_default():
    file = parse(rounds=None, limits=None, settings=None, experiment=None, positive=None)
    assert file.experiment.method == Experiment.method
    assert file.rounds.minimum == 2
    assert file.limits.max_norm is None
    assert file.rounds.patience(3) == Patience(file.rounds.timeout, None, file.rounds.grace, file.rounds.comeback)


def test_a_quorum_is_a_share_of_those_who_are_asked():
    rules = parse().rounds
    assert [rules.patience(asked).quorum for asked in (1, 3, 5, 10)] == [None, 2, 3, 6]
    assert rules.patience(3)[:1] + rules.patience(3)[2:] == (120, 5, 60)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": None}, "name is missing"),
        ({"classes": None}, "classes is missing"),
        ({"name": "ba nks"}, "The federation's name is 'ba nks'"),
        ({"partys": ["a"]}, "Unknown setting 'partys' .did you mean 'parties'"),
        ({"server": None}, "server is missing, but method 'fedgkc' has a server"),
        ({"address": None}, "address is missing"),
        ({"parties": None}, "parties is missing"),
        ({"parties": ["bank_a"]}, "at least two"),
        ({"parties": ["bank_a", "bank_b", "bank_a"]}, "Both 'bank_a' and 'bank_a'"),
        ({"parties": ["bank_a", "Bank_A"]}, "Both 'bank_a' and 'Bank_A'"),
        ({"parties": ["bank_a", "coordinator"]}, "Both 'coordinator' and 'coordinator'"),
        ({"parties": ["bank_a", "bank b"]}, "The name of a party or server is 'bank b'"),
        ({"parties": ["bank_a", "../b"]}, "1 to 64 of the letters"),
        ({"parties": ["bank_a", "b" * 65]}, "1 to 64 of the letters"),
        ({"parties": ["bank_a", "bank/*"]}, "1 to 64 of the letters"),
        ({"parties": ["bank_a", "bänk"]}, "1 to 64 of the letters"),
        ({"parties": "bank_a"}, "Setting 'parties'"),
        ({"address": "127.0.0.1"}, "HOST:PORT"),
        ({"address": "127.0.0.1:0"}, "HOST:PORT"),
        ({"address": "127.0.0.1:70000"}, "HOST:PORT"),
        ({"address": "host/path:80"}, "HOST:PORT"),
        ({"address": "tls/127.0.0.1:80"}, "HOST:PORT"),
        ({"classes": ["yes"]}, "at least two names"),
        ({"classes": 1}, "at least two names"),
        ({"classes": ["yes", "Yes"]}, "the same in a table"),
        ({"positive": "maybe"}, "positive class 'maybe' does not occur"),
        ({"schema__positive": "no"}, "positive is 'yes', but in .schema. it is 'no'"),
        ({"features": 3}, "the columns of .schema. become 16"),
        ({"schema": None}, "how many features"),
        ({"schema__numerik": ["age"]}, "banks.toml, .schema.: there is no key 'numerik'"),
        ({"schema__label": None}, "names columns but no label"),
        ({"experiment__method": "fedavgg"}, "Unknown method 'fedavgg' .did you mean 'fedavg'"),
        ({"experiment__round": 3}, "Unknown setting 'round'"),
        ({"experiment__rounds": 0}, "rounds is 0; it must be at least 1"),
        ({"experiment__scaling": "federated"}, "parties scale by their own data"),
        ({"experiment__split": "1/x/2"}, "cannot be read"),
        ({"experiment__score": "global"}, "has no global model"),
        ({"experiment__topology": "ring"}, "takes no topology"),
        ({"experiment__models": "gat"}, "lets every party have its own model"),
        ({"settings__alfa": 1}, "Unknown setting 'alfa'"),
        ({"settings__alpha": -1}, "alpha is -1"),
        ({"rounds__minimum": 4}, "minimum = 4, but there are 3 parties"),
        ({"rounds__minimum": 0}, "minimum is 0; it must be at least 1"),
        ({"rounds__quorum": 1.5}, "quorum is 1.5"),
        ({"rounds__timeout": 0}, "timeout is 0"),
        ({"rounds__tiemout": 9}, "Unknown setting 'tiemout' .did you mean 'timeout'"),
        ({"limits__max_norm": 0}, "max_norm is 0"),
        ({"limits__more": 1}, "Unknown setting 'more'"),
        ({"limits__most_bytes": 2**31}, "most_bytes is 2147483648"),
        ({"peers": {"bank_a": "127.0.0.1:1"}}, "has a server, but there is a table .peers."),
        ({"experiment__method": "dfed_sst"}, "Method 'dfed_sst' has no server"),
        ({"experiment__method": "centralised", "settings": None}, "needs the data of all parties in one place"),
        ({"classes": ["a", "b", "c"], "positive": None}, "metric f1 is of the positive class"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(InputError, match=sentence) as refusal:
        parse(**changes)
    assert str(refusal.value).startswith("banks.toml")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"server": "coordinator"}, "has no server"),
        ({"parties": ["clinic_a"]}, "has no server"),
        ({"peers": None}, "has no server"),
        ({"peers": {"a": "127.0.0.1:1"}}, "at least two"),
        ({"peers": {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}}, "Two of the peers have the address 127.0.0.1:1"),
        ({"peers": {"a": "127.0.0.1:1", "b": "nowhere"}}, "b is 'nowhere'; it should read HOST:PORT"),
        ({"peers": {"a": "127.0.0.1:1", "b": 2}}, "Setting 'peers'"),
        ({"experiment__method": "fedavg"}, "has a server, but there is a table"),
    ],
)
def test_what_peers_cannot_have_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        parse(PEERS, **changes)


@pytest.mark.parametrize("name", NO_MEANING)
def test_a_field_of_an_experiment_without_a_meaning_here_says_why(name):
    assert name in {entry.name for entry in fields(Experiment)}
    with pytest.raises(InputError, match=rf"\[experiment\] has {name}, but .+: leave it out") as refusal:
        parse(**{f"experiment__{name}": "any"})
    assert str(refusal.value).count(".") <= 2  # that of banks.toml and the full stop


@pytest.mark.parametrize("name", [name for name in METHODS if name != "centralised"])
def test_every_method_has_a_federation_of_its_kind(name):
    text = PEERS if issubclass(METHODS[name], PeerMethod) else BANKS
    file = parse(text, experiment__method=name, settings=None, experiment__metric="accuracy")
    assert file.experiment.method == name
    assert file.hash == parse(text, experiment__method=name, settings=None, experiment__metric="accuracy").hash


def test_one_architecture_for_all_is_chosen_in_the_file():
    assert parse(experiment__method="fedavg", settings=None, experiment__models="gat").experiment.models == "gat"
    with pytest.raises(InputError, match="needs one architecture for all clients"):
        parse(experiment__method="fedavg", settings=None, experiment__models=["gat", "gcn"])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "others"},
        {"server": "other"},
        {"parties": ["bank_b", "bank_a", "bank_c"]},
        {"classes": ["no", "yes"]},
        {"positive": "no"},
        {"experiment__method": "fedproto", "settings": None},
        {"experiment__rounds": 51},
        {"experiment__seed": 8},
        {"experiment__split": "20/40/40"},
        {"settings__alpha": 0.6},
        {"schema__hash": 8},
        {"schema__numeric": ["turnover", "balance"]},
        {"rounds__minimum": 3},
        {"rounds__quorum": 1.0},
    ],
)
def test_the_hash_changes_with_all_that_must_be_agreed_on(changes):
    assert parse(**changes).hash != parse().hash


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "10.1.2.3:99"},
        {"rounds__timeout": 9},
        {"rounds__checkpoint": 3},
        {"limits": None},
        {"schema__separator": ";"},
        {"experiment__epochs": Experiment.epochs},  # a default that is written down
    ],
)
def test_the_hash_does_not_change_with_what_is_everybody_s_own(changes):
    assert parse(**changes).hash == parse().hash


def test_an_own_method_counts_by_what_its_file_holds(tmp_path):
    text = BANKS.replace('"fedgkc"', '"mine.py:Mine"').replace("alpha = 0.5", "")
    source = "from dataclasses import dataclass\nfrom graft.methods.fedavg import FedAvg\n"
    source += "@dataclass(frozen=True)\nclass Mine(FedAvg):\n    '''Own.'''\n"
    hashes = []
    for folder, more in (("here", ""), ("there", ""), ("other", "# changed\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(source + more)
        (tmp_path / folder / "federation.toml").write_text(text)
        hashes.append(read_federation(tmp_path / folder / "federation.toml").hash)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("text", [BANKS, PEERS])
def test_a_file_that_is_written_is_read_back(tmp_path, text):
    file = parse(text)
    write_federation(tmp_path / "federation.toml", file)
    again = read_federation(tmp_path / "federation.toml")
    assert again == file
    assert again.hash == file.hash
    assert again != parse(text, name="others")
    written = federation_text(file)
    assert "# seconds for an answer" in written
    assert max(map(len, written.splitlines())) <= 140


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match="There is no federation file"):
        read_federation(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(InputError, match=r"bad.toml is not a readable TOML file"):
        read_federation(tmp_path / "bad.toml")


def test_a_federation_in_python_needs_no_file():
    file = FederationFile(
        "lab", ("a", "b"), 2, server="s", address="127.0.0.1:1", features=4, values={"method": "fedavg"}
    )
    assert file.experiment.clients == 2
    assert file.agreement.width == 4


def test_a_party_with_its_own_data_alone_has_an_ordinary_run_directory(tmp_path):
    """What it trained is in there, how its tables became features, and so new tables can be predicted."""
    write_banks(tmp_path / "banks", size=0.1)
    file = parse(experiment__method="fedavg", settings=None, experiment__rounds=2, schema__unknown_nodes="drop")
    data = party_federation("beta", tmp_path / "banks" / "beta", file.agreement, 1)
    experiment = replace(file.experiment, clients=1, width=8, device="cpu", threads=1)
    result = run_experiment(experiment, tmp_path / "run", given=Given(federation=data))
    assert [row["client"] for row in result.summary["per_client"]] == ["beta"]
    assert "feature_names" in result.summary["communication"]["before_training"]
    loaded = graft.load_result(tmp_path / "run")
    predictions = loaded.client("beta").predict(tmp_path / "banks" / "beta-new")
    assert len(predictions) > 0
    assert set(predictions.labels) <= {"yes", "no"}
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0
    assert "beta" in (tmp_path / "run" / "report.html").read_text()


def test_a_party_starts_at_the_point_of_its_own_number_as_in_a_simulation(tmp_path):
    """Over zenoh and over Flower a party is a federation of one, and still has its number among all."""
    write_banks(tmp_path / "banks", size=0.1)
    changes = {"schema__unknown_nodes": "drop", "experiment__initial_weights": "own"}
    file = parse(**changes)
    data = party_federation("beta", tmp_path / "banks" / "beta", file.agreement, 1)
    setup = own_setup(file, own_experiment(file, "gcn", "cpu"), 1, data)
    started = select_clients(setup.fleet([0]).initial(), 0)
    assert same(started, initial_weights(setup.models[0], 7, 1))
    assert gap(started, initial_weights(setup.models[0], 7, 0)) > 1e-2
    with pytest.raises(InputError, match="initial_weights is own, but with method 'fedavg'"):
        parse(**changes, experiment__method="fedavg", settings=None)
