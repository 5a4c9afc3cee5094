"""Every claim of the contract can fail: for each there is a method that breaks it, and is caught."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
import torch
from annotated_types import Ge
from torch.nn import functional

from graft.errors import GraftError, InputError
from graft.federation.clients import Request
from graft.federation.method import step
from graft.federation.reveals import MODEL, Reveals
from graft.fields import Search
from graft.methods.ditto import Ditto
from graft.methods.fedavg import FedAvg
from graft.methods.fedgkc import FedGKC, FedGKCPaper
from graft.methods.fedomd import FedOMD
from graft.tensors.trees import Tree, map_tree, unsqueeze_to
from graft.testing import ContractError, averages, capture, check_method, claims, contract, labels, leaks, logged, wire
from graft.testing.raw_data import find_raw_data
from graft.testing.toy import toy_graph

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
STATISTICS = Reveals("statistics")  # of everything, as somebody might say who has not looked
CHANNEL = {}  # what a method could share with its clients where all are in one process


def wave(leaf):
    """Returns weights that are always the same."""
    return 0.3 * torch.arange(1.0, leaf.numel() + 1).sin().view(leaf.shape)


class NeverTrains(FedOMD):
    @step
    def match(self, fleet, wanted):
        super().match(fleet, wanted)
        model = fleet.state.model = fleet.initial()
        return Tree(model=model, weight=fleet.weight, discrepancy=torch.zeros(len(fleet.clients)))


class TrainsTheOtherModel(FedGKCPaper):  # its clients predict with their local models
    @step
    def train(self, fleet, copilot):
        reply = super().train(fleet, copilot)
        fleet.state.model = fleet.initial()
        return reply


class DrawsGlobally(FedAvg):
    def loss(self, fleet, weights, received):
        return super().loss(fleet, weights, received) * torch.rand(len(fleet.clients))


class IgnoresTheSeed(FedAvg):
    def start_server(self, server):
        server.state.model = map_tree(wave, server.initial())

    def start_client(self, fleet):
        fleet.state.model = map_tree(lambda leaf: wave(leaf[0]).expand_as(leaf), fleet.initial())

    def loss(self, fleet, weights, received):  # noqa: ARG002
        return fleet.label_loss(weights, dropout=False)


class ReadsOthersOfItsFleet(FedAvg):
    @step
    def train(self, fleet, model):
        reply = super().train(fleet, model)
        fleet.state.model = map_tree(lambda leaf: leaf.mean(0, keepdim=True).expand_as(leaf), fleet.state.model)
        return reply


class SharesADictionary(FedAvg):
    @step
    def train(self, fleet, model):
        CHANNEL["bias"] = 0.1
        return super().train(fleet, model)

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.state.model = map_tree(lambda leaf: leaf + CHANNEL.pop("bias", 0), server.state.model)


class GoesAroundTheCount(FedAvg):
    def round(self, server, clients):
        replies = clients.engine.ask(Request("train", clients.round, clients.members, server.state.model))
        self.aggregate(server, clients, replies)


class RemembersOutsideItsState(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        before = server.cache.get("before", server.state.model)
        server.cache["before"] = server.state.model
        server.state.model = map_tree(lambda leaf, last: 1.5 * leaf - 0.5 * last, server.state.model, before)


class AsksEverybody(FedAvg):
    def round(self, server, clients):
        super().round(server, clients.everyone)


class SendsAnObject(FedAvg):
    @step
    def train(self, fleet, model):
        return super().train(fleet, model) | {"graph": fleet.graph}


class SendsMoreThanItSays(FedAvg):
    @step
    def train(self, fleet, model):
        return Tree(**super().train(fleet, model), edges=fleet.graph.degree.sum(1))


class SaysMoreThanItSends(FedAvg):
    reveals: ClassVar = {"train/fingerprint": STATISTICS}


class VotesByItsLabels(FedAvg):
    @step
    def train(self, fleet, model):
        of_class_0 = (fleet.labels.classes == 0) & fleet.labels.masks[:, 0]
        return Tree(model=super().train(fleet, model).model, weight=1 + of_class_0.sum(1))


class SaysThatItsVoteIsAFingerprint(FedAvg):
    reveals: ClassVar = {"train/weight": STATISTICS}


class LooksAtEveryModel(FedAvg):
    averages: ClassVar = ("train/model",)

    def aggregate(self, server, clients, replies):  # noqa: ARG002
        server.state.model = map_tree(lambda leaf: leaf.median(0).values, replies.model)


class LooksAtOneReply(FedAvg):
    averages: ClassVar = ("train/model",)

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.record(vote=replies[replies.clients[0]].weight)


class AveragesItsVotesToo(FedAvg):
    averages: ClassVar = ("train/model", "train/weight")


class AveragesWhatIsNotSent(FedAvg):
    averages: ClassVar = ("train/models",)


class AveragesAPartOfAField(FedAvg):
    averages: ClassVar = ("train/model/head",)


class AsksWhereTheReplyIs(FedAvg):
    """A server that does something else where it has every model in its hands."""

    averages: ClassVar = ("train/model",)

    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        if all("model" in part for _, part in replies.parts):
            server.state.model = map_tree(lambda leaf: 0.9 * leaf, server.state.model)


class DoesNotSayThatItAverages(FedAvg):
    """Its own aggregation: what its base declares does not count any more."""

    def aggregate(self, server, clients, replies):  # noqa: ARG002
        server.state.model = map_tree(lambda leaf: leaf.median(0).values, replies.model)


class WeighsByWhatItLogs(FedGKC):
    logged: ClassVar = ("train/knowledge",)


class TeachesByWhatItLogs(FedGKC):
    """Its copilot, and so its clients, follow a number that stays with them."""

    logged: ClassVar = ("train/strength",)

    def round(self, server, clients):
        super().round(server, clients)
        strength = server.records["strength"].mean()
        server.state.copilot = map_tree(lambda leaf: strength * leaf, server.state.copilot)


class LogsWhatIsNotSent(FedGKC):
    logged: ClassVar = ("train/confidence",)


class LogsAPartOfAField(FedGKC):
    logged: ClassVar = ("train/terms/local",)


class LogsItsModel(FedAvg):
    averages: ClassVar = ("train/model",)
    logged: ClassVar = ("train/model",)


class DoesNotSayWhatItLogs(FedGKC):
    """Its own round: what its base declares does not count any more."""

    def round(self, server, clients):
        super().round(server, clients)
        server.state.copilot = map_tree(lambda leaf: 0.5 * leaf, server.state.copilot)


class JudgesInSecret(FedAvg):
    @step
    def train(self, fleet, model):
        reply = super().train(fleet, model)
        right = fleet.count_validated(fleet.predict(fleet.state.model).logits)
        fleet.state.model = map_tree(lambda leaf: leaf * (1 + unsqueeze_to(right, leaf)), fleet.state.model)
        return reply


class AnswersByValidationLabels(FedAvg):
    def logits(self, fleet):
        own = super().logits(fleet)
        return fleet.best_validated([-own, own])


class JudgesByValidationNodesAlways(Ditto):
    @step
    def train(self, fleet, model):
        reply = super().train(fleet, model)
        counts = (fleet.labels.masks[:, 1] * fleet.labels.classes).sum(1)
        fleet.state.model = map_tree(lambda leaf: leaf * (1 + unsqueeze_to(counts, leaf)), fleet.state.model)
        return reply


class SaysThatAnotherSettingJudges(FedGKC):
    judges_unless: ClassVar = {"gates": (False,)}


class LearnsFromTestNodes(FedAvg):
    def loss(self, fleet, weights, received):
        tested = fleet.labels.masks[:, 2] * fleet.labels.classes
        return super().loss(fleet, weights, received) * (1 + tested.sum(1))


class PredictsByTestLabels(FedAvg):
    def logits(self, fleet):
        return super().logits(fleet) + functional.one_hot(fleet.labels.classes, 3)


class AddsStateLate(FedAvg):
    def round(self, server, clients):
        super().round(server, clients)
        if int(server.round) > 1:
            server.state.late = torch.zeros(1)


@dataclass(frozen=True)
class ForgetsItsBounds(FedAvg):
    share: Annotated[float, Ge(0)] = 0.5

    def __post_init__(self):
        """Checks nothing."""


@dataclass(frozen=True)
class TakesAnything(FedAvg):
    plan: Any = None


@dataclass(frozen=True)
class SearchesWhatItRefuses(FedAvg):
    share: Annotated[float, Ge(0), Search(0.0, 1.0)] = 0.1

    def check(self):
        if self.share > 0.5:
            raise InputError("more than a half")


class TrainsInCompanyOnly(FedAvg):
    @step
    def train(self, fleet, model):
        reply = super().train(fleet, model)
        if fleet.federation == 1:
            fleet.state.model = fleet.initial()
        return reply


class DividesByEdges(FedAvg):
    def loss(self, fleet, weights, received):
        degree = fleet.graph.degree.sum(1)
        return super().loss(fleet, weights, received) * degree / degree


class DividesByLabels(FedAvg):
    def loss(self, fleet, weights, received):
        labelled = fleet.labels.masks[:, 0].sum(1)
        return super().loss(fleet, weights, received) * labelled / labelled


class ForgetsItsModelWithoutLabels(FedAvg):
    """A client without labels that divides its model by what it learnt from."""

    @step
    def train(self, fleet, model):
        reply = super().train(fleet, model)
        labelled = fleet.labels.masks[:, 0].sum(1)
        fleet.state.model = map_tree(lambda leaf: leaf * unsqueeze_to(labelled / labelled, leaf), fleet.state.model)
        return reply


class DividesByWholeNumbersOfNeighbours(FedAvg):
    def loss(self, fleet, weights, received):
        smallest = fleet.graph.degree.where(fleet.graph.degree > 0, torch.inf).amin(1).floor()
        return super().loss(fleet, weights, received) * smallest / smallest


class ScalesByTheLargestWeight(FedAvg):
    """Of all clients in the fleet, and so of others."""

    def loss(self, fleet, weights, received):
        values = fleet.graph.neighbours.values
        return super().loss(fleet, weights, received) * (1 if values is None else 1 + values.max())


class BreaksTwo(ForgetsItsBounds, DividesByEdges):
    pass


@dataclass(frozen=True)
class NeedsSettings(FedAvg):
    share: float


class CountsInPython(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        count = server.cache["rounds"] = server.cache.get("rounds", 0) + 1
        server.state.model = map_tree(lambda leaf: leaf * (1 - 0.01 * count), server.state.model)


class WaitsForTheDevice(FedAvg):
    def aggregate(self, server, clients, replies):
        super().aggregate(server, clients, replies)
        server.record(norm=float(server.state.model.head.weight.norm()))


class DoesNotKnowThatItCould(FedAvg):
    capturable: ClassVar[bool] = False


BROKEN = [
    (contract.training_changes_predictions, NeverTrains, "client 0 predicts the same"),
    (contract.training_changes_predictions, TrainsTheOtherModel, "client 0 predicts the same"),
    (contract.same_seed_same_weights, DrawsGlobally, "differs from run to run"),
    (contract.same_seed_same_weights, IgnoresTheSeed, "another seed gives the same"),
    (contract.a_fleet_equals_its_clients_one_by_one, ReadsOthersOfItsFleet, "in a fleet"),
    (wire.in_process_equals_messages_as_bytes, SharesADictionary, "when messages are bytes"),
    (wire.in_process_equals_messages_as_bytes, GoesAroundTheCount, r"up=0.* on record"),
    (averages.averaged_fields_are_read_as_means_alone, LooksAtEveryModel, r"'model' in `averages`, .* only the mean"),
    (averages.averaged_fields_are_read_as_means_alone, LooksAtOneReply, r"'model' in `averages`, .* only the mean"),
    (
        averages.averaged_fields_are_read_as_means_alone,
        AveragesItsVotesToo,
        r"'weight' in `averages`, .* only the mean",
    ),
    (averages.averaged_fields_are_read_as_means_alone, AveragesWhatIsNotSent, "train/models is declared in `averages`"),
    (averages.averaged_fields_are_read_as_means_alone, AveragesAPartOfAField, "train/model/head is declared"),
    (averages.averaged_fields_are_read_as_means_alone, AsksWhereTheReplyIs, "the server differs by .* in two halves"),
    (logged.logged_fields_are_only_put_on_record, WeighsByWhatItLogs, "the server differs where .* participation 1.0"),
    (logged.logged_fields_are_only_put_on_record, TeachesByWhatItLogs, "no longer a finite number"),
    (logged.logged_fields_are_only_put_on_record, LogsWhatIsNotSent, "train/confidence is declared in `logged`, but"),
    (logged.logged_fields_are_only_put_on_record, LogsAPartOfAField, "train/terms/local is declared in `logged`, but"),
    (logged.logged_fields_are_only_put_on_record, LogsItsModel, "train/model is declared .* and in `averages` too"),
    (labels.labels_of_validation_nodes_are_read_as_declared, JudgesInSecret, "the labels of validation nodes$"),
    (
        labels.labels_of_validation_nodes_are_read_as_declared,
        AnswersByValidationLabels,
        "what client . predicts changes",
    ),
    (
        labels.labels_of_validation_nodes_are_read_as_declared,
        JudgesByValidationNodesAlways,
        "validation nodes with choose = False, as `judges_unless`",
    ),
    (labels.labels_of_validation_nodes_are_read_as_declared, SaysThatAnotherSettingJudges, "gates is declared in"),
    (labels.labels_of_test_nodes_change_nothing, LearnsFromTestNodes, "the server keeps changes with the labels of"),
    (
        labels.labels_of_test_nodes_change_nothing,
        PredictsByTestLabels,
        "what client . predicts changes with the labels of",
    ),
    (contract.resumed_equals_unbroken, RemembersOutsideItsState, "the server differs after a resume"),
    (contract.clients_that_are_not_asked_keep_their_state, AsksEverybody, r"\[0, 1, 2, 3\] were changed"),
    (contract.messages_are_trees, SendsAnObject, "holds a FleetGraph at 'graph'"),
    (leaks.every_field_that_leaves_is_declared, SendsMoreThanItSays, "train/edges leaves a client"),
    (leaks.every_field_that_leaves_is_declared, SaysMoreThanItSends, "train/fingerprint is declared"),
    (leaks.fields_depend_on_what_they_declare, VotesByItsLabels, "train/weight changes with the labels"),
    (leaks.fields_depend_on_what_they_declare, SaysThatItsVoteIsAFingerprint, "but on none it does"),
    (contract.no_state_appears_after_the_first_round, AddsStateLate, "the server keeps another state .*: late"),
    (contract.settings_are_checked, ForgetsItsBounds, "share = -1.0 is not refused"),
    (contract.search_spaces_can_be_tried, SearchesWhatItRefuses, "0..1 of share holds 1.0, .* more than a half"),
    (contract.settings_are_checked, TakesAnything, "plan = <object .* is not refused"),
    (contract.a_federation_of_one_trains, TrainsInCompanyOnly, "a client alone does not train"),
    (contract.a_client_without_edges_is_fine, DividesByEdges, "no longer a finite number"),
    (contract.a_client_without_labels_is_fine, DividesByLabels, "no longer a finite number"),
    (contract.a_client_without_labels_is_fine, ForgetsItsModelWithoutLabels, "of client 1 is not finite"),
    (contract.weights_of_edges_are_fine, DividesByWholeNumbersOfNeighbours, "no longer a finite number"),
    (contract.weights_of_edges_are_fine, ScalesByTheLargestWeight, "in a fleet where edges have weights"),
    pytest.param(capture.rounds_are_captured_as_declared, CountsInPython, "changes a cache", marks=needs_gpu),
    pytest.param(capture.rounds_are_captured_as_declared, WaitsForTheDevice, "not captured", marks=needs_gpu),
    pytest.param(capture.rounds_are_captured_as_declared, DoesNotKnowThatItCould, "could be", marks=needs_gpu),
]


@pytest.mark.parametrize(("claim", "broken", "reason"), BROKEN)
def test_a_method_that_breaks_a_claim_is_caught(claim, broken, reason):
    with pytest.raises(GraftError, match=reason):
        claim(broken)


def test_an_aggregation_of_its_own_takes_the_averages_of_its_base_back():
    assert DoesNotSayThatItAverages.averages == ()
    averages.averaged_fields_are_read_as_means_alone(DoesNotSayThatItAverages)


def test_a_round_of_its_own_takes_the_logs_of_its_base_back():
    assert FedGKC.logged == ("train/strength", "train/clarity", "train/terms")
    assert DoesNotSayWhatItLogs.logged == ()
    assert NeverTrains.logged == FedOMD.logged == ("match/discrepancy",)


@pytest.mark.parametrize("method", ["fedavg", "fedgkc", "fedomd"])
def test_half_of_a_mean_is_not_the_mean(method, monkeypatch):
    averages.averaged_fields_are_read_as_means_alone(method)
    monkeypatch.setattr(averages, "add_sums", lambda parts: parts[0])
    with pytest.raises(ContractError, match=r"differs by .* in two halves"):
        averages.averaged_fields_are_read_as_means_alone(method)


def dense_adjacency(fleet):
    nodes = fleet.graph.nodes
    return fleet.graph.neighbours @ torch.eye(nodes).expand(len(fleet.clients), nodes, nodes)


LEAKS = {
    "features": lambda fleet: fleet.graph.features,
    "transposed": lambda fleet: fleet.graph.features.transpose(1, 2),
    "sorted": lambda fleet: fleet.graph.features.flatten(1).sort(1).values,
    "scaled and shifted": lambda fleet: 2 * fleet.graph.features.flatten(1) + 1,
    "one node among noise": lambda fleet: functional.pad(fleet.graph.features[:, :1], (5, 7), value=0.25),
    "adjacency": dense_adjacency,
    "normalised adjacency": lambda fleet: dense_adjacency(fleet) / fleet.graph.degree.clamp(min=1).unsqueeze(2),
    "labels": lambda fleet: fleet.labels.classes,
    "one-hot labels": lambda fleet: functional.one_hot(fleet.labels.classes, 3),
    "one-hot labels in columns": lambda fleet: functional.one_hot(fleet.labels.classes, 3).transpose(1, 2).float(),
    "training labels": lambda fleet: torch.where(fleet.labels.masks[:, 0], fleet.labels.classes, -1),
}


@dataclass(frozen=True)
class Leaks(FedAvg):
    """Sends something else under the name of its vote, which it does not use."""

    leak: str = "features"

    @step(fleet=False)
    def train(self, fleet, model):
        return Tree(model=super().train(fleet, model).model, weight=LEAKS[self.leak](fleet))

    def aggregate(self, server, clients, replies):  # noqa: ARG002
        models = [replies[client].model for client in replies.clients]
        server.state.model = map_tree(lambda *leaves: torch.stack(leaves).mean(0), *models)


@dataclass(frozen=True)
class LeaksAndCallsItStatistics(Leaks):
    reveals: ClassVar = {"train/weight": STATISTICS}


@dataclass(frozen=True)
class LeaksAndCallsItAModel(Leaks):
    reveals: ClassVar = {"train/weight": MODEL}


@dataclass(frozen=True)
class LeaksAndSaysSo(Leaks):
    reveals: ClassVar = {"train/weight": Reveals("the data themselves", raw=True)}


@pytest.mark.parametrize("leak", LEAKS)
def test_raw_data_is_found_in_any_form_and_whatever_it_is_called(leak):
    with pytest.raises(ContractError, match="train/weight changes with"):
        leaks.fields_depend_on_what_they_declare(Leaks(leak))
    for kind in (LeaksAndCallsItStatistics, LeaksAndCallsItAModel):
        with pytest.raises(ContractError, match="train/weight of client 0 in round 1 holds"):
            leaks.no_message_holds_raw_data(kind(leak))
    leaks.no_message_holds_raw_data(LeaksAndSaysSo(leak))


def test_a_list_of_edges_is_found_and_other_numbers_are_not():
    graph, random = toy_graph(29), np.random.default_rng(0)
    for listed in (graph.edges, graph.edges.T, graph.edges[:, ::2], graph.edges.astype(float)):
        assert find_raw_data(listed, graph) == "its list of edges"
    for other in (random.normal(size=(29, 6)), random.permutation(graph.x.sum(0)), random.integers(0, 29, (2, 40))):
        assert find_raw_data(other, graph) is None
    for summary in (graph.x.mean(0), graph.x.std(0), np.bincount(graph.y), np.zeros(29), np.arange(29)):
        assert find_raw_data(summary, graph) is None


def test_check_method_names_every_claim_that_is_broken(monkeypatch):
    monkeypatch.setattr(
        "graft.testing.CLAIMS", (contract.settings_are_checked, contract.a_client_without_edges_is_fine)
    )
    check_method(FedAvg)
    check_method(FedAvg())
    check_method("fedavg")
    with pytest.raises(ContractError, match=r"DividesByEdges breaks 1 claims.*\n  a client without edges is fine: The"):
        check_method(DividesByEdges)
    with pytest.raises(ContractError, match="BreaksTwo breaks 2 claims"):
        check_method(BreaksTwo)


def test_a_method_in_a_file_of_its_own_is_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("graft.testing.CLAIMS", (wire.in_process_equals_messages_as_bytes,))
    file = tmp_path / "soft.py"
    file.write_text(
        "from graft import step\n"
        "from graft.methods.fedavg import FedAvg\n"
        "class Soft(FedAvg):\n"
        "    def loss(self, fleet, weights, received):\n"
        "        return 0.5 * super().loss(fleet, weights, received)\n"
    )
    check_method(f"{file}:Soft")
    with pytest.raises(InputError, match="has no 'Hard'"):
        check_method(f"{file}:Hard")


def test_a_method_that_needs_settings_is_checked_as_an_instance():
    with pytest.raises(InputError, match="NeedsSettings cannot be made without settings"):
        contract.settings_are_checked(NeedsSettings)
    contract.settings_are_checked(NeedsSettings(0.5))


def test_claims_about_a_gpu_are_made_where_there_is_one():
    here = len(claims())
    assert len(claims(gpu=False)) < len(claims(gpu=True))
    assert here == len(claims(gpu=torch.cuda.is_available()))
    assert claims(gpu=False)[0][0] == "training changes predictions"
