"""Scores of a run: accuracies round by round, the best round, and the summary of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from graft.data.federation import FederationData
from graft.experiments.experiment import Experiment
from graft.federation.clients import Traffic
from graft.federation.evaluation import Best, accuracy
from graft.federation.metrics import KINDS
from graft.federation.session import RoundOutcome
from graft.models import Model
from graft.tensors.trees import Tree

COUNTED = KINDS[1:]  # training accuracy is recorded as a mean only
OTHER_MODELS = ("global", "trained")  # that are scored beside the clients' own: of the server, of peers before they mix


@dataclass
class Scores:
    """What a run has found out so far, and which of its rounds were best."""

    nodes: Tensor  # of every client, in all
    totals: Tensor  # of every client, in each mask
    score: str  # whose validation accuracy picks the best round: personal or global
    traffic: Traffic = field(default_factory=Traffic)
    best: Best = field(default_factory=Best)
    best_shared: Best = field(default_factory=Best)
    best_trained: Best = field(default_factory=Best)  # of peers before they mix
    stale: int = 0  # evaluations since the best one
    records: list[dict[str, Any]] = field(default_factory=list)

    def add(self, number: int, outcome: RoundOutcome) -> dict[str, Any]:
        """Returns the record of a round, all but its seconds; it counts from here on."""
        facts = outcome.facts
        self.traffic.add(facts.traffic)
        record: dict[str, Any] = {
            "round": number,
            "loss": outcome.losses.mean(),
            **{f"{way}_bytes": count for way, count in asdict(facts.traffic).items()},
            "participants": facts.participants,
            "details": {
                name: value.tolist() if isinstance(value, Tensor) else value for name, value in outcome.details.items()
            },
            **({"links": facts.links} if facts.links else {}),
        }
        if outcome.tensors.get("correct"):
            record |= self._accuracies(outcome.tensors.correct, number)
        self.records.append(record)
        return record

    def _accuracies(self, correct: Tree, number: int) -> dict[str, Any]:
        """Returns accuracies of every client's own model, and of others that were scored, on that client's nodes."""
        own = accuracy(correct.own, self.totals, self.nodes)
        scores: dict[str, Any] = {kind: own.mean(kind) for kind in KINDS}
        scores |= {f"{kind}_node_weighted": own.node_weighted(kind) for kind in COUNTED}
        scores["per_client"] = {kind: own.clients(kind) for kind in COUNTED}
        for model in OTHER_MODELS:
            if model in correct:
                other = accuracy(correct[model], self.totals, self.nodes)
                scores |= {f"{kind}_{model}": other.mean(kind) for kind in COUNTED}
                scores[f"test_{model}_node_weighted"] = other.node_weighted("test")
        self._compare(number, scores)
        return scores

    def _compare(self, number: int, scores: Mapping[str, Any]) -> None:
        """Notes whether a round that was evaluated is the best so far."""
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
                self._compare(record["round"], record)

    @property
    def seconds(self) -> float:
        """Returns how long all rounds took."""
        return float(sum(record["seconds"] for record in self.records))

    def summary(self, clients: int) -> dict[str, Any]:
        """Returns the best round and its accuracies, of all clients and of each."""
        evaluated = {record["round"]: record for record in self.records if "test" in record}
        nothing = {"round": 0, "per_client": {kind: [None] * clients for kind in KINDS}}
        # Without validation nodes no round is the best; then the last one that was evaluated has to do.
        last = evaluated[max(evaluated)] if evaluated else nothing
        best = evaluated.get((self.best_shared if self.score == "global" else self.best).round, last)
        common = evaluated.get(self.best_shared.round, last)
        trained = evaluated.get(self.best_trained.round, last)
        unmixed = {name: trained[name] for name in ("test_trained", "test_trained_node_weighted") if name in trained}
        return {
            "best_round": best["round"],
            "accuracy": {
                "test": best.get("test"),
                "validation": best.get("validation"),
                "test_node_weighted": best.get("test_node_weighted"),
                "test_global": common.get("test_global"),
                **unmixed,  # of peers, before they mix
            },
            "per_client": [
                {kind: best["per_client"][kind][client] for kind in ("test", "validation")} for client in range(clients)
            ],
        }


def describe_clients(
    federation: FederationData, models: list[Model], accuracies: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the rows of result.json about each client."""
    return [
        {
            "client": client,
            "model": models[client % len(models)].name,
            "nodes": graph.nodes,
            "edges": graph.edge_count,
            **accuracies[client],
        }
        for client, graph in enumerate(federation.clients)
    ]


def describe_run(experiment: Experiment, name: str, federation: FederationData) -> dict[str, Any]:
    """Returns what result.json says of the run itself."""
    return {
        "method": name,
        "dataset": federation.graph.name,
        "partition": federation.partition,
        **({"topology": experiment.topology} if experiment.topology else {}),
        "clients": len(federation.clients),
        "seed": experiment.seed,
    }
