"""Scores of a run: accuracies and other metrics round by round, the best round, and the summary of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from graft.data.exchange import Exchange
from graft.data.federation import FederationData
from graft.data.graphs import Ints
from graft.data.lazy_graphs import ClientGraphs
from graft.experiments.experiment import Experiment
from graft.experiments.prediction import RunModels
from graft.federation.clients import Traffic
from graft.federation.evaluation import Best, ClientScores, accuracy
from graft.federation.metric_names import ACCURACY, METRICS
from graft.federation.metrics import KINDS, Measured
from graft.federation.session import RoundOutcome
from graft.models import Model
from graft.tensors.trees import Tree

COUNTED = KINDS[1:]  # training accuracy is recorded as a mean only
OTHER_MODELS = ("global", "trained")  # scored beside the clients' own: the server's, those from before they were mixed
LARGEST_CONFUSION = 10_000  # numbers in the confusion matrices of a round; more are not put on record
MOST_NAMED = 8  # clients in a warning
MOST_READ = 100_000  # nodes of all clients, whose graphs are not in memory, up to which they are read for a warning
FEWEST_NODES = 10  # to test on, below which a model may well predict one class only


@dataclass
class Scores:
    """What a run has found out so far, and which of its rounds were best."""

    nodes: Tensor  # of every client, in all; of none where only those of a round's participants are scored
    totals: Tensor  # of every client, in each mask
    score: str  # whose validation score picks the best round: personal or global
    metrics: tuple[str, ...] = ACCURACY  # the first is that score
    names: tuple[str, ...] | None = None  # of the clients; None: their numbers
    of_participants: bool = False  # whether a round scores its participants alone
    traffic: Traffic = field(default_factory=Traffic)
    best: Best = field(init=False)
    best_shared: Best = field(init=False)
    best_trained: Best = field(init=False)  # of models before they were mixed
    stale: int = 0  # evaluations since the best one
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        higher = METRICS[self.metrics[0]].higher
        self.best, self.best_shared, self.best_trained = Best(higher), Best(higher), Best(higher)

    def add(self, number: int, outcome: RoundOutcome) -> dict[str, Any]:
        """Returns the record of a round, all but its seconds; it counts from here on."""
        facts = outcome.facts
        self.traffic.add(facts.traffic)
        record: dict[str, Any] = {
            "round": number,
            "loss": outcome.losses.mean(),
            **{f"{way}_bytes": count for way, count in asdict(facts.traffic).items()},
            "participants": [self.names[client] if self.names else client for client in facts.participants],
            **({"absent": {self._name(client): why for client, why in facts.absent.items()}} if facts.absent else {}),
            "details": {
                name: value.tolist() if isinstance(value, Tensor) else value for name, value in outcome.details.items()
            },
            **({"links": facts.links} if facts.links else {}),
        }
        if outcome.tensors.get("correct"):
            counts = outcome.tensors.get("counts", Tree(nodes=self.nodes, totals=self.totals))
            record |= {} if facts.scored is None else {"scored": facts.scored}
            record |= accuracies(outcome.tensors.correct, counts)
            record |= self._metrics(outcome.measured, counts) if outcome.measured else {}
            self._compare(record)
        self.records.append(record)
        return record

    def _name(self, client: int) -> str:
        return self.names[client] if self.names else str(client)

    def _metrics(self, measured: Mapping[str, Measured], counts: Tree) -> dict[str, Any]:
        """Returns the metrics that were asked for, of the models that accuracies are of."""
        own, nodes = measured["own"], counts.nodes.flatten().numpy()
        scores: dict[str, Any] = {}
        for metric in self.metrics:
            by_client = ClientScores(own.of_metric(metric), nodes)
            scores[metric] = {kind: by_client.mean(kind) for kind in KINDS}
            scores[metric] |= {f"{kind}_pooled": own.pooled(metric, kind) for kind in COUNTED}
            for model in OTHER_MODELS:
                if model in measured:
                    other = ClientScores(measured[model].of_metric(metric), nodes)
                    scores[metric] |= {f"{kind}_{model}": other.mean(kind) for kind in COUNTED}
            scores[metric]["per_client"] = {kind: by_client.clients(kind) for kind in COUNTED}
        confusion = own.statistics["confusion"][:, COUNTED.index("test")]
        kept = {"confusion": confusion.tolist()} if confusion.size <= LARGEST_CONFUSION else {}
        return {"metrics": scores, **kept}

    def _compare(self, record: Mapping[str, Any]) -> None:
        """Notes whether a round that was evaluated is the best so far."""
        number = record["round"]
        scores = record["metrics"][self.metrics[0]] if "metrics" in record else record
        better = self.best.see(number, scores["validation"])
        for model, best in zip(OTHER_MODELS, (self.best_shared, self.best_trained), strict=True):
            if f"validation_{model}" in scores:
                better_other = best.see(number, scores[f"validation_{model}"])
                better = better_other if model == self.score else better
        self.stale = 0 if better else self.stale + 1

    def restore(self, records: list[dict[str, Any]]) -> None:
        """Goes on after rounds that are on record."""
        self.records = records
        for record in records:
            self.traffic.add(Traffic(**{way.name: record[f"{way.name}_bytes"] for way in fields(Traffic)}))
            if "validation" in record:
                self._compare(record)

    @property
    def seconds(self) -> float:
        """Returns how long all rounds took."""
        return float(sum(record["seconds"] for record in self.records))

    def _record_of(self, best: Best) -> dict[str, Any]:
        """Returns the record of the best round."""
        evaluated = {record["round"]: record for record in self.records if "test" in record}
        # Without validation nodes no round is the best; then the last one that was evaluated has to do.
        nothing: dict[str, Any] = {"round": 0, **({"scored": []} if self.of_participants else {})}
        return evaluated.get(best.round, evaluated[max(evaluated)] if evaluated else nothing)

    @property
    def _picked(self) -> Best:
        return self.best_shared if self.score == "global" else self.best

    def scored_clients(self, clients: int) -> Sequence[int]:
        """Returns who was scored in the best round, of so many clients."""
        scored: Sequence[int] = self._record_of(self._picked).get("scored", range(clients))
        return scored

    def summary(self, clients: int) -> dict[str, Any]:
        """Returns the best round and its accuracies, of all clients and of each that was scored in it, with their
        numbers where these are not all."""
        best = self._record_of(self._picked)
        others = OtherBest(*map(self._record_of, (self.best, self.best_shared, self.best_trained)))
        by_nodes = {name: others.trained[name] for name in ("test_trained_node_weighted",) if name in others.trained}
        return {
            "best_round": best["round"],
            "accuracy": {
                "test": best.get("test"),
                "validation": best.get("validation"),
                "test_node_weighted": best.get("test_node_weighted"),
                "test_global": others.common.get("test_global"),
                **two_points(*others),
                **by_nodes,
            },
            **({"metric": self.metrics[0]} if self.metrics != ACCURACY else {}),
            **({"metrics": best_metrics(best, others)} if "metrics" in best else {}),
            "per_client": list(client_rows(best, clients)),
        }


def accuracies(correct: Tree, counts: Tree) -> dict[str, Any]:
    """Returns accuracies of every scored client's own model, and of others that were scored, on that client's nodes."""
    own = accuracy(correct.own, counts.totals, counts.nodes)
    scores: dict[str, Any] = {kind: own.mean(kind) for kind in KINDS}
    scores |= {f"{kind}_node_weighted": own.node_weighted(kind) for kind in COUNTED}
    scores["per_client"] = {kind: own.clients(kind) for kind in COUNTED}
    for model in OTHER_MODELS:
        if model in correct:
            other = accuracy(correct[model], counts.totals, counts.nodes)
            scores |= {f"{kind}_{model}": other.mean(kind) for kind in COUNTED}
            scores[f"test_{model}_node_weighted"] = other.node_weighted("test")
    return scores


class OtherBest(NamedTuple):
    """The records of the rounds that were best by the validation scores of one kind of models each."""

    own: Mapping[str, Any]
    common: Mapping[str, Any]
    trained: Mapping[str, Any]


def two_points(
    own: Mapping[str, Any], common: Mapping[str, Any], trained: Mapping[str, Any]
) -> dict[str, float | None]:
    """Returns what a method scores at either point of a round: by the models that clients have trained, and by those
    that they are given afterwards, a model of their own or the global one, if any are.

    Clients' own models are those that they have trained, unless these were scored beside them.
    """
    if "test_trained" in own:
        return {"test_trained": trained.get("test_trained"), "test_served": own.get("test")}
    return {"test_trained": own.get("test"), "test_served": common.get("test_global")}


def best_metrics(best: Mapping[str, Any], others: OtherBest) -> dict[str, dict[str, float | None]]:
    """Returns the metrics of the best round; those of the global model, and of models before mixing, are of theirs."""
    rounds = {"_global": others.common, "_trained": others.trained}
    return {
        metric: {
            name: rounds.get(name[name.rfind("_") :], best)["metrics"][metric][name]
            for name in scores
            if name != "per_client"
        }
        | two_points(*(record.get("metrics", {}).get(metric, {}) for record in others))
        for metric, scores in best["metrics"].items()
    }


def client_rows(record: Mapping[str, Any], clients: int) -> Iterator[dict[str, Any]]:
    """Yields what a round found out about every client that was scored, with its number where these are not all."""
    if "scored" not in record:
        yield from (client_scores(record, client) for client in range(clients))
        return
    for position, client in enumerate(record["scored"]):
        yield {"client": client, **client_scores(record, position)}


def client_scores(record: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Returns what a round found out about one of the clients that were scored; nothing where none was."""
    per_client = record.get("per_client")
    scores: dict[str, Any] = {kind: per_client and per_client[kind][position] for kind in ("test", "validation")}
    if "metrics" in record:
        scores["metrics"] = {
            metric: {kind: values["per_client"][kind][position] for kind in ("test", "validation")}
            for metric, values in record["metrics"].items()
        }
    if "confusion" in record:
        scores["confusion"] = record["confusion"][position]
    return scores


def count_predicted(
    models: RunModels,
    federation: FederationData,
    accuracies: Sequence[float | None],
    clients: Sequence[int] | None = None,
) -> Ints:
    """Returns how many test nodes of all or some clients their best models take for each class, [clients, classes]; all
    0 where the accuracy already tells that there are several, or graphs would have to be read that are too large for
    that."""
    predicted = np.zeros((len(accuracies), federation.classes), np.int64)
    graphs = (federation.clean or federation).clients
    chosen = range(len(graphs)) if clients is None else clients
    if isinstance(graphs, ClientGraphs) and graphs.nodes()[list(chosen)].sum() > MOST_READ:
        return predicted
    for row, client in enumerate(chosen):
        accuracy_of_client = accuracies[row]
        if accuracy_of_client is None:
            continue
        graph = graphs[client]
        test = graph.masks["test"]
        shares = np.bincount(graph.y[test], minlength=graph.classes) / test.sum()
        if np.isclose(shares, accuracy_of_client, rtol=0, atol=1e-9).any():  # as of a model that predicts one class
            predicted[row] = np.bincount(models.client(client).predict().classes[test], minlength=graph.classes)
    return predicted


def warn_of_one_class(
    predicted: Ints,
    accuracies: Sequence[float | None],
    federation: FederationData,
    experiment: Experiment,
    clients: Sequence[int] | None = None,
) -> list[str]:
    """Returns a sentence if models take all test nodes of their clients for one class, although these are of several;
    `predicted` are the numbers of test nodes by class, a row for all or some clients."""
    cases = []
    chosen = range(len(accuracies)) if clients is None else clients
    for client, counts, accuracy_of_client in zip(chosen, predicted, accuracies, strict=True):
        nodes, likeliest = int(counts.sum()), int(counts.argmax())
        if nodes < FEWEST_NODES or counts[likeliest] < nodes or accuracy_of_client is None or accuracy_of_client == 1:
            continue
        classes = federation.class_names
        label = likeliest if classes is None else f"'{classes[likeliest]}'"
        what = f"class {label} for all of its {nodes:,} test nodes"
        cases.append((f"client {federation.client_name(client)}", what, f"{100 * accuracy_of_client:.1f} %"))
    if not cases:
        return []
    if len(cases) == 1:
        whose, what, share = cases[0]
        sentence = f"The model of {whose} predicts {what}; accuracy is then the share of that class ({share})"
    else:
        listed = "; ".join(f"{whose}: {what}, accuracy {share}" for whose, what, share in cases[:MOST_NAMED])
        more = f"; and {len(cases) - MOST_NAMED} more" if len(cases) > MOST_NAMED else ""
        sentence = (
            f"The models of {len(cases)} clients predict one class only, and accuracy is then the share of that class "
            f"({listed}{more})"
        )
    return [f"{sentence}: {remedy(experiment)}."]


def remedy(experiment: Experiment) -> str:
    """Returns what to do about models that predict one class only."""
    balanced = experiment.class_weights == "balanced" or experiment.loss == "focal"
    other = "try more rounds or another learning_rate" if balanced else "try --class-weights balanced"
    return f"look at auprc or balanced_accuracy, or {other}"


def describe_clients(
    federation: FederationData, models: Sequence[Model], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the rows of result.json about clients, of which each carries its client's number where not all have
    one."""
    nodes, edges = federation.sizes
    described = []
    for position, row in enumerate(rows):
        client = row.get("client", position)
        facts = {
            "client": federation.client_name(client),
            "model": models[client % len(models)].name,
            "nodes": int(nodes[client]),
            "edges": int(edges[client]),
        }
        described.append({**facts, **row, "client": facts["client"]})
    return described


def describe_traffic(traffic: Traffic, exchange: Exchange) -> dict[str, Any]:
    """Returns all bytes that were sent, and what was sent before the first round, field by field, if anything was."""
    sent: dict[str, Any] = {f"{way}_bytes": count for way, count in asdict(traffic).items()}
    if exchange.up:
        sent["up_bytes"] += exchange.up_bytes
        sent["down_bytes"] += exchange.down_bytes
        sent["before_training"] = {
            name: {"up_bytes": sum(field.up), "down_bytes": sum(field.down), "reveals": field.reveals}
            for name, field in exchange.fields.items()
        }
    return sent


def describe_run(experiment: Experiment, name: str, federation: FederationData) -> dict[str, Any]:
    """Returns what result.json says of the run itself."""
    return {
        "method": name,
        "dataset": federation.name,
        "partition": federation.partition,
        **({"topology": experiment.topology} if experiment.topology else {}),
        "clients": len(federation.clients),
        "seed": experiment.seed,
    }
