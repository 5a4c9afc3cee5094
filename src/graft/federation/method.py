"""What a federated method is: fields, a round that runs at the server, and steps that run where the data is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, overload

from torch import Tensor

from graft.federation import metrics
from graft.federation.reveals import NODE_COUNTS, SCORES, Reveals, measures
from graft.fields import check_fields
from graft.tensors.trees import Tree, Weights, select_clients

if TYPE_CHECKING:
    import numpy as np

    from graft.data.federation import FederationData
    from graft.data.graphs import Graph
    from graft.federation.clients import Clients, Replies
    from graft.federation.fleet import Fleet
    from graft.federation.server import Server
    from graft.federation.topologies import Topology
    from graft.models.architecture import Model

Step = TypeVar("Step", bound=Callable[..., Any])
# Steps that every method has and that change nothing: they only tell how good models are, and how much data there is.
SCORING = frozenset({"score", "score_shared", "measure", "measure_shared", "score_trained", "measure_trained", "count"})
LASTING = frozenset({"count"})  # those of them whose reply is the same in every round
LinkRecord = dict[str, list[list[float]]]  # exchange -> (to, from, weight), with the part where parts travel apart


class StepKind(NamedTuple):
    """How an engine may run a step."""

    fleet: bool = True  # with many clients at once
    pure: bool = False  # its reply depends on nothing but the clients' data and state, which it leaves as they are


@overload
def step(function: Step) -> Step: ...
@overload
def step(*, fleet: bool = True, pure: bool = False) -> Callable[[Step], Step]: ...
def step(function: Any = None, *, fleet: bool = True, pure: bool = False) -> Any:
    """Marks a method that runs where the data is; only what it returns leaves.

    With `fleet=False` it is given its clients one at a time and never captured on a GPU: such a step may read values,
    and its reply may have a size of its own for every client. The reply of a `pure` one may be used again as long as
    nothing else was asked of a client.
    """

    def mark(function: Any) -> Any:
        function.__graft_step__ = StepKind(fleet, pure)
        return function

    return mark if function is None else mark(function)


def find_step(method: Method, name: str) -> tuple[Callable[..., Any], StepKind]:
    """Returns the step of that name and its kind; nothing but a marked step can be called."""
    function: Any = getattr(type(method), name, None)
    kind = getattr(function, "__graft_step__", None)
    if not isinstance(kind, StepKind):
        raise ValueError(f"'{name}' is not a step of {type(method).__name__}")
    return function.__get__(method), kind  # that of the class: a setting may have the name of a step


def judging_settings(kind: type[Method]) -> dict[str, tuple[Any, ...]]:
    """Returns the settings with which a method may judge models by labels of validation nodes, each with the values
    with which it does not; declarations of base classes are included."""
    tables: list[Mapping[str, tuple[Any, ...]]] = [vars(base).get("judges_unless", {}) for base in kind.__mro__]
    return {name: values for table in reversed(tables) for name, values in table.items()}


class Held(NamedTuple):
    """A model that clients hold."""

    weights: Weights
    architecture: str | None = None  # its name, where it is not that of the clients' own models


class Placement(NamedTuple):
    """Which graphs a method trains on, one a client."""

    graphs: Sequence[Graph]
    scoring: Sequence[Graph] | None = None  # those that models are scored on, if others
    membership: np.ndarray | None = None  # whose node each one was, where all data is pooled into one client
    scoring_membership: np.ndarray | None = None  # the same of the graph to be scored on, where it has other nodes


@dataclass(frozen=True)
class Method:
    """A federated method; its fields are its hyper-parameters."""

    one_model: ClassVar[bool] = False  # whether all clients must have the same architecture
    architecture: ClassVar[str | None] = None  # the one it is about, by name; without one, the experiment's models
    # Fields of the experiment, as models, that it sets where nobody else does.
    experiment_defaults: ClassVar[Mapping[str, Any]] = {}
    # Whether clients of several architectures may be one fleet: it only trains `fleet.state.model` and asks for its
    # predictions, and never looks inside.
    heterogeneous: ClassVar[bool] = False
    # Whether what a client's own model starts from outlasts its first training: not where it trains the server's.
    keeps_start: ClassVar[bool] = True
    supports_batches: ClassVar[bool] = True  # losses look at the fleet's graph and labels only
    predicts_from_labels: ClassVar[bool] = False  # predictions look at the labels of a client's training nodes, too
    takes_topology: ClassVar[bool] = False  # whether an experiment may say who hears whom
    # Whether whole rounds can be captured on a GPU: from the second one on a round reads no value back, and all that it
    # changes are tensors of `state` on the device.
    capturable: ClassVar[bool] = False
    # Fields of replies, as "step/field", that the server reads through `replies.mean` alone: an engine may leave them
    # where the clients are, sum them there, and forget them after the round. A class with a `round` or an `aggregate`
    # of its own declares its own; those of base classes do not count.
    averages: ClassVar[tuple[str, ...]] = ()
    # Fields of replies, as "step/field", that the server only puts on record: where clients are organisations they stay
    # with them, and the server reads NaN. They count for subclasses as those of `averages` do.
    logged: ClassVar[tuple[str, ...]] = ()
    # Settings with which a step or the predictions may read labels of validation nodes, to judge models by them, each
    # with the values with which they read none; declarations of base classes count, too.
    judges_unless: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # The branch of the server's state that is an average of clients' models and starts the next round: the server's
    # optimiser may step towards it. A class with a `round` or an `aggregate` of its own declares its own.
    averaged: ClassVar[str | None] = None
    # What leaves a client, as "step/field": see `graft.federation.reveals`; declarations of base classes count, too,
    # unless None takes them back.
    reveals: ClassVar[Mapping[str, Reveals | None]] = {
        "score/correct": SCORES,
        "score_shared/correct": SCORES,
        **measures("measure"),
        **measures("measure_shared"),
        "count/nodes": NODE_COUNTS,
        "count/totals": NODE_COUNTS,
    }

    def __init_subclass__(cls) -> None:
        """Takes the `averages`, the `logged` and the `averaged` of base classes back where what they are about was
        replaced: it may need more than means, or than nothing, or keep something else."""
        super().__init_subclass__()
        for name in ("averages", "logged", "averaged"):
            deciding = next(base for base in cls.__mro__ if {name, "round", "aggregate"} & vars(base).keys())
            if name not in vars(deciding):
                setattr(cls, name, vars(Method)[name])

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Refuses values that do not go together; the bounds of single fields are declared with their types."""

    def model(self, architecture: Model) -> Model:
        """Returns the architecture that clients train, and the server knows, where the experiment names this one."""
        return architecture

    def averaged_model(self, server: Server) -> Model:
        """Returns the architecture whose weights, all or some, the `averaged` branch holds."""
        return server.models[0]

    def second_model(self) -> str | None:
        """Returns the architecture of a model that clients train beside their own, by name, where there is one.

        Nothing but estimates of memory and the like depend on it.
        """
        return None

    def graph_views(self) -> int:
        """Returns how many perturbed views of its graph a client's model sees in a step, for estimates of memory."""
        return 0

    def place(self, federation: FederationData) -> Placement:
        """Returns the graphs to train on: every client's own, scored as they were before any perturbation."""
        return Placement(federation.clients, None if federation.clean is None else federation.clean.clients)

    def rehearsals(self) -> Sequence[Method]:
        """Returns methods whose messages, all together and within a few rounds on small graphs, have every form that
        those of this one may have: itself, unless forms depend on data, or much of its work does not change them."""
        return [self]

    def start_server(self, server: Server) -> None:
        """Sets the state that the server keeps; every field it will ever have."""

    def start_client(self, fleet: Fleet) -> None:
        """Sets the state that clients keep; every field they will ever have."""
        fleet.state.model = fleet.initial()

    def round(self, server: Server, clients: Clients) -> None:
        """The paper's algorithm."""
        raise NotImplementedError

    def conduct(self, server: Server, clients: Clients, topology: Topology | None = None) -> LinkRecord:  # noqa: ARG002
        """Runs one round; returns the links along which peers exchanged, if there were any."""
        with server.optimizing(self):
            self.round(server, clients)
        return {}

    def evaluate(self, server: Server, clients: Clients) -> Tree:
        """Returns how many nodes of each client are classified correctly: by the client's own model ("own"), by the
        model that all have in common ("global"), if the method has one, and, where clients' own models are those that
        they were given after their training, by those that they had trained ("trained")."""
        replies = self.ask_models(server, clients, self.score, self.score_shared)
        return Tree({models: reply.correct for models, reply in replies.items()})

    def evaluate_metrics(self, server: Server, clients: Clients) -> Tree:
        """Returns what `graft.federation.metrics.measure` gives of the models that `evaluate` scores."""
        replies = self.ask_models(server, clients, self.measure, self.measure_shared)
        return Tree({models: reply.stacked() for models, reply in replies.items()})

    def ask_models(
        self, server: Server, clients: Clients, own: Callable[..., Any], given: Callable[..., Any]
    ) -> dict[str, Replies]:
        """Asks for scores of all models there are: with one step of those that clients hold, with another of those
        that the server sends along."""
        replies = {"own": self.ask_own_models(server, clients, own, given)}
        if self.personalised(server) is not None:
            replies["trained"] = clients.ask(own)
        shared = self.shared(server)
        if shared is not None:
            replies["global"] = clients.ask(given, shared)
        return replies

    def ask_own_models(
        self, server: Server, clients: Clients, own: Callable[..., Any], given: Callable[..., Any]
    ) -> Replies:
        """Asks for scores of the model that each client would use itself."""
        stacked = self.personalised(server)
        if stacked is None:
            return clients.ask(own)
        return clients.ask(given, each={c: select_clients(stacked, c) for c in clients.members})

    def personal(self, fleet: Fleet) -> Weights:
        """Returns the model each client would use itself."""
        model: Weights = fleet.state.model
        return model

    def shared(self, server: Server) -> Weights | None:  # noqa: ARG002
        """Returns the model all clients hold in common after the round, if the method has one."""
        return None

    def personalised(self, server: Server) -> Weights | None:  # noqa: ARG002
        """Returns the models, stacked by client, that the server made for its clients and will send them when they
        train next, if the method has such; they are scored beside what clients hold by then, and count as theirs."""
        return None

    def trained_models(self, clients: Clients, replies: Replies) -> Weights:  # noqa: ARG002
        """Returns the models that clients predict with after training, stacked as they replied: what a plug is to learn
        from, where `replies.model` is not all of them."""
        models: Weights = replies.model
        return models

    def logits(self, fleet: Fleet) -> Tensor:
        """Returns each client's logits of its nodes: its own model's, unless the method classifies otherwise."""
        return fleet.predict(self.personal(fleet)).logits

    def shared_logits(self, fleet: Fleet, model: Weights) -> Tensor:
        """Returns the logits that a model of the server's gives of the clients' nodes."""
        return fleet.predict(model).logits

    def model_alone(self) -> bool:
        """Returns whether all logits are what a client's own model, or the server's, gives of a graph, with nothing
        else of a client's state."""
        kind = type(self)
        return kind.logits is Method.logits and kind.shared_logits is Method.shared_logits

    def predictors(self, fleet: Fleet) -> Mapping[str, Held]:
        """Returns the models, by name, by which the one client of a fleet predicts: by that alone, or by the mean of
        two models' probabilities; they can be exported. None where it takes anything else."""
        return {"own": Held(self.personal(fleet))} if self.model_alone() else {}

    @step(pure=True)
    def score(self, fleet: Fleet) -> dict[str, Tensor]:
        """How many nodes each client's own model classifies correctly."""
        fleet = fleet.on(fleet.scoring)
        return {"correct": fleet.count_correct(self.logits(fleet))}

    @step
    def score_shared(self, fleet: Fleet, model: Weights) -> dict[str, Tensor]:
        """How many nodes a model of the server's classifies correctly."""
        fleet = fleet.on(fleet.scoring)
        return {"correct": fleet.count_correct(self.shared_logits(fleet, model))}

    @step(fleet=False, pure=True)
    def measure(self, fleet: Fleet) -> Tree:
        """Metrics of each client's own model."""
        fleet = fleet.on(fleet.scoring)
        return metrics.measure(fleet, self.logits(fleet))

    @step(fleet=False)
    def measure_shared(self, fleet: Fleet, model: Weights) -> Tree:
        """Metrics of a model of the server's."""
        fleet = fleet.on(fleet.scoring)
        return metrics.measure(fleet, self.shared_logits(fleet, model))

    @step
    def count(self, fleet: Fleet) -> dict[str, Tensor]:
        """How much data each client has; what scores are divided by."""
        scored = fleet.on(fleet.scoring)
        return {"nodes": scored.node_counts(), "totals": scored.totals()}
