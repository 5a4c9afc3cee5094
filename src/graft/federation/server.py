"""Where a round runs: the server's side of a federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graft.errors import InputError
from graft.federation import server_optimizers
from graft.federation.fleet import initial_weights
from graft.federation.server_optimizer_names import ServerOptimizer
from graft.models.architecture import Model
from graft.models.assigned import different_models
from graft.tensors.randomness import SeedBuffer, Stream, seed_for, streams
from graft.tensors.trees import Tree, map_tree

if TYPE_CHECKING:
    from graft.federation.method import Method
    from graft.federation.setup import Setup

MOMENTS = "server_optimizer"  # the branch of the state with the moments of its optimiser


@dataclass
class Server:
    """What a round may see and keep at the server, which never sees data."""

    models: Sequence[Model]  # the architecture of every client
    seed: int
    device: torch.device
    architecture: Callable[[str], Model]  # another architecture, for the same data and of the same width and dropout
    features: int
    classes: int
    rounds: int = 100  # how many the run will have, for schedules
    state: Tree = field(default_factory=Tree)
    cache: dict[Any, Any] = field(default_factory=dict)  # values on the host, made of state and never saved
    records: dict[str, Any] = field(default_factory=dict)
    optimizer: ServerOptimizer | None = None  # steps towards the average of a round, instead of taking it
    seeds: SeedBuffer | None = None  # where seeds and the round's number come from while a round is captured
    _number: int = 0  # of the round; a method that read it in a captured round would read the same for ever

    @classmethod
    def of(cls, setup: Setup) -> Server:
        """Returns the server of a federation, with the state that its method starts from."""
        server = cls(
            setup.models,
            setup.seed,
            setup.device,
            setup.architecture,
            setup.features,
            setup.classes,
            setup.rounds,
            optimizer=setup.server_optimizer,
        )
        setup.method.start_server(server)
        server.start_optimizer(setup.method)
        return server

    def start_optimizer(self, method: Method) -> None:
        """Sets the moments of the server's optimiser, if it has one; refuses a method that has nothing to step."""
        if self.optimizer is None:
            return
        if method.averaged is None or method.averaged not in self.state:
            raise InputError(
                f"server_optimizer is {self.optimizer.name}, but with these settings {type(method).__name__} keeps no "
                "average at the server: use none."
            )
        frozen = method.averaged_model(self).frozen
        moments = server_optimizers.start_moments(self.optimizer, self.state[method.averaged], frozen)
        if moments:
            self.state[MOMENTS] = moments

    @contextmanager
    def optimizing(self, method: Method) -> Iterator[None]:
        """Steps from the averaged model of before towards the one that the method makes meanwhile."""
        if self.optimizer is None or method.averaged is None:
            yield
            return
        before = self.state[method.averaged]
        yield
        average, moments = self.state[method.averaged], self.state.get(MOMENTS, Tree())
        frozen = method.averaged_model(self).frozen
        self.state[method.averaged], moments = server_optimizers.step(self.optimizer, before, average, moments, frozen)
        if moments:
            self.state[MOMENTS] = moments

    @property
    def clients(self) -> int:
        """Returns how many clients there are in all."""
        return len(self.models)

    @property
    def model(self) -> Model:
        """Returns the clients' architecture; refused where they have several."""
        different = different_models(self.models)
        if len(different) > 1:
            names = ", ".join(dict.fromkeys(model.name for model in different))
            raise InputError(f"This method needs one architecture for all clients, not {names}.")
        return self.models[0]

    def begin(self, round: int) -> None:
        """Starts a round."""
        self._number = round

    def write_seeds(self, seeds: SeedBuffer) -> None:
        """Writes the seeds of this round, for the replay of a captured one."""
        seeds.write(self._number)

    @property
    def round(self) -> Tensor:
        """Returns the number of the round, on the device."""
        return self.seeds.round if self.seeds else torch.full((), self._number, device=self.device)

    def initial(self, model: Model | None = None) -> Tree:
        """Returns initial weights of the clients' common architecture, or of another one."""
        return map_tree(lambda leaf: leaf.to(self.device), initial_weights(model or self.model, self.seed))

    def random(self, purpose: str, owners: Sequence[int] = (0,)) -> Stream:
        """Returns random draws of the server's own in this round: one stream, or one for every number in `owners`."""
        who = "server", purpose
        seed = self.seeds.reserve(self.seed, *who) if self.seeds else seed_for(self.seed, self._number, *who)
        return streams(self.device, seed, owners)

    def record(self, **values: Any) -> None:
        """Keeps values of this round for the run's record; they are read only once the round is over."""
        self.records.update(values)

    def take_records(self) -> dict[str, Any]:
        """Returns the values of this round, and starts a new record."""
        records, self.records = self.records, {}
        return records
