"""What a federated method is: fields, a round that runs at the server, and steps that run where the data is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from torch import Tensor

from graft.fields import check_fields
from graft.tensors.trees import Weights

if TYPE_CHECKING:
    from graft.federation.exchange import Clients, Server
    from graft.federation.fleet import Fleet

Step = TypeVar("Step", bound=Callable[..., Any])


@overload
def step(function: Step) -> Step: ...
@overload
def step(*, fleet: bool) -> Callable[[Step], Step]: ...
def step(function: Any = None, *, fleet: bool = True) -> Any:
    """Mark a method that runs where the data is; only what it returns leaves.

    With `fleet=False` it is given its clients one at a time and never recorded for replay on a GPU: such a step may
    look at values, and its reply may have a size of its own for every client.
    """

    def mark(function: Step) -> Step:
        function.__graft_step__ = "fleet" if fleet else "single"  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


def find_step(method: Method, name: str) -> tuple[Callable[..., Any], bool]:
    """The step of that name and whether it takes whole fleets; nothing but a marked step can be called."""
    kind = getattr(getattr(type(method), name, None), "__graft_step__", None)
    if kind is None:
        raise ValueError(f"'{name}' is not a step of {type(method).__name__}")
    return getattr(method, name), kind == "fleet"


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
    pooled: ClassVar[bool] = False  # whether it trains on all data in one place (not federated at all)
    supports_batches: ClassVar[bool] = True  # losses look at the fleet's graph and labels only

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together; the bounds of single fields are declared with their types."""

    def start_server(self, server: Server) -> None:
        """Set the state that the server keeps; every field it will ever have."""

    def start_client(self, fleet: Fleet) -> None:
        """Set the state that clients keep; every field they will ever have."""
        fleet.state.model = fleet.initial()

    def round(self, server: Server, clients: Clients) -> None:
        """The paper's algorithm."""
        raise NotImplementedError

    def personal(self, fleet: Fleet) -> Weights:
        """The model each client would use itself."""
        return fleet.state.model  # type: ignore[no-any-return]

    def shared(self, server: Server) -> Weights | None:  # noqa: ARG002
        """The model all clients hold in common after the round, if the method has one."""
        return None

    def personalised(self, server: Server) -> Weights | None:  # noqa: ARG002
        """The models, stacked by client, that the server made for its clients and will send them when they train next,
        if the method has such; they are scored in place of what clients hold by then."""
        return None

    def answers(self, fleet: Fleet) -> Tensor:
        """What each client says of its nodes, as logits: its own model's, unless the method classifies otherwise."""
        return fleet.predict(self.personal(fleet)).logits

    @step
    def score(self, fleet: Fleet) -> dict[str, Tensor]:
        """How many nodes each client gets right by itself."""
        return {"correct": fleet.scored.count_correct(self.answers(fleet.scored))}

    @step
    def score_shared(self, fleet: Fleet, model: Weights) -> dict[str, Tensor]:
        """How many nodes the common model gets right."""
        return {"correct": fleet.scored.correct(model)}

    @step
    def count(self, fleet: Fleet) -> dict[str, Tensor]:
        """How much data each client has; what scores are divided by."""
        return {"nodes": fleet.group_sizes(), "totals": fleet.scored.totals()}
