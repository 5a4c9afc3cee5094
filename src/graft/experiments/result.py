"""What a run found out, and how it looks in a console and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graft.errors import InputError
from graft.experiments.notebook_table import notebook_table
from graft.federation.metric_names import METRICS, format_metric
from graft.files import printable
from graft.tensors.trees import Tree

if TYPE_CHECKING:
    from graft.data.graphs import Graph
    from graft.experiments.prediction import ClientModel, RunModels
    from graft.experiments.verdicts import Verdict
    from graft.federation.metrics import Predictions as ScoredNodes

SHOWN = 50  # clients in the table of a notebook


@dataclass(frozen=True, repr=False)
class Result:
    """What a run found out; `summary` is what result.json holds."""

    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    server: Tree  # state after the last round
    clients: Mapping[int, Tree]  # state after the last round, with every client's own model; of those who took part
    finished: bool = True  # False when Ctrl-C ended the run before its time
    models: RunModels | None = None  # those of the best round and of the last, which `client` gives

    def client(
        self, client: str | int, *, model: Literal["own", "global"] = "own", at: Literal["best", "last"] = "best"
    ) -> ClientModel:
        """Returns a client's model, by its name or number: the one that it would use itself or the global one, as it
        was in the best round or is after the last."""
        if self.models is None:
            raise InputError("This result holds no models.")
        return self.models.client(client, model, at)

    def against(self, alone: Result) -> list[Verdict]:
        """Returns what joining changed for every client: this run against another on the same data, in which each
        client trained alone, by the metric that picked the best round."""
        from graft.experiments.verdicts import judge

        if self.models is None or alone.models is None:
            raise InputError("A result without models cannot be compared node by node.")
        federation, other = self.models.federation(), alone.models.federation()
        if federation.hash != other.hash or len(federation.clients) != len(other.clients):
            raise InputError("The two runs are on different data, so their models cannot be compared.")
        if any(len(run.summary["per_client"]) < len(federation.clients) for run in (self, alone)):
            raise InputError(
                "A run with evaluate_clients = participants has scores and models of some clients only, so joining "
                "cannot be judged client by client: use evaluate_clients = all."
            )
        verdicts = []
        for client, graph in enumerate((federation.clean or federation).clients):
            before, after = (run.on_test_nodes(client, graph, federation.positive) for run in (alone, self))
            name, metric = federation.client_name(client), self.summary.get("metric", "accuracy")
            verdicts.append(judge(name, metric, before, after, self.summary["seed"]))
        return verdicts

    def on_test_nodes(self, client: int, graph: Graph, positive: int | None) -> ScoredNodes:
        """Returns what a client's own model predicts of its test nodes."""
        from graft.federation.metrics import Predictions as ScoredNodes

        test = graph.masks["test"]
        probabilities = self.client(client).predict().probabilities[test].astype("float64")
        return ScoredNodes(graph.y[test], probabilities, positive)

    @property
    def best_round(self) -> int:
        """Returns the round whose models were best on validation nodes."""
        best: int = self.summary["best_round"]
        return best

    @property
    def accuracy(self) -> dict[str, Any]:
        """Returns the test and validation accuracies of the best round."""
        accuracy: dict[str, Any] = self.summary["accuracy"]
        return accuracy

    @property
    def metrics(self) -> dict[str, dict[str, float | None]]:
        """Returns the metrics that were asked for, at the best round; empty where that was the accuracy alone."""
        metrics: dict[str, dict[str, float | None]] = self.summary.get("metrics", {})
        return metrics

    def __repr__(self) -> str:
        return f"Result({printable(', '.join(self._headline()))})"

    def _repr_html_(self) -> str:
        """Returns a headline and a table of the clients, for notebooks."""
        rows = self.summary["per_client"]
        names = ("client", "model", "nodes", "edges", "validation", "test")
        metrics = [name for name in self.metrics if name != "accuracy"]
        more = len(rows) - SHOWN
        return notebook_table(
            ", ".join(self._headline()),
            (*names, *(f"test {METRICS[name].title}" for name in metrics)),
            [
                [
                    *(shown(row[name]) for name in names),
                    *(format_metric(name, row["metrics"][name]["test"], missing="-") for name in metrics),
                ]
                for row in rows[:SHOWN]
            ],
            [f"and {more} more clients"] if more > 0 else [],
        )

    def _headline(self) -> list[str]:
        summary = self.summary
        tests = {name: values["test"] for name, values in self.metrics.items()} | {"accuracy": self.accuracy["test"]}
        values = [
            f"{METRICS[name].title} {format_metric(name, test)}" for name, test in tests.items() if test is not None
        ]
        scored = f"test {', '.join(values)}" if values else "not scored"
        return [
            f"{summary['method']} on {summary['dataset']}",
            f"{summary['clients']} clients",
            f"{scored} at round {summary['best_round']} of {summary['rounds']}",
            *([] if self.finished else ["stopped before its end"]),
        ]


def shown(value: Any) -> Any:
    """Returns a cell of the table: accuracies as percent."""
    return format_metric("accuracy", value, missing="-") if value is None or isinstance(value, float) else value
