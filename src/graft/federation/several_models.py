"""Methods whose clients hold several models, of which one predicts, or two by the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graft.federation.fleet import pick_by_client
from graft.federation.method import Held, Method
from graft.federation.remembered import remember, remembered
from graft.tensors.trees import flatten
from graft.training.losses import mean_prediction

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet

OWN = "own"  # the name of a client's own model


@dataclass(frozen=True)
class SeveralModels(Method):
    """Clients hold several models, by name.

    Where there is a choice of what predicts, every client chooses by its validation nodes at the end of its training,
    and keeps to it for new data, which has no labels.
    """

    def candidates(self) -> Sequence[tuple[str, ...]]:
        """Returns what may predict: the name of a model, or of two where their mean does."""
        raise NotImplementedError

    def held(self, fleet: Fleet) -> Mapping[str, Held]:
        """Returns what clients hold of the models that may predict."""
        raise NotImplementedError

    @property
    def chooses(self) -> bool:
        return len(self.candidates()) > 1

    def start_client(self, fleet: Fleet) -> None:
        super().start_client(fleet)
        if self.chooses:
            fleet.state.choice = torch.zeros(len(fleet.clients), dtype=torch.int64, device=fleet.device)

    def choose(self, fleet: Fleet, known: Mapping[str, Tensor] | None = None) -> None:
        """Has every client choose what predicts from now on; `known` are logits of models, by name."""
        if self.chooses:
            predictions = self.predictions(fleet, known or {})
            fleet.state.choice = fleet.best_place(predictions)
            remember(fleet, self.state_of_predictions(fleet), pick_by_client(fleet.state.choice, predictions))

    def logits(self, fleet: Fleet) -> Tensor:
        if not self.chooses:
            return self.predictions(fleet, {})[0]
        kept = remembered(fleet, self.state_of_predictions(fleet))
        return kept[0] if kept else pick_by_client(fleet.state.choice, self.predictions(fleet, {}))

    def predictions(self, fleet: Fleet, known: Mapping[str, Tensor]) -> list[Tensor]:
        """Returns the logits of all candidates."""
        held, made = self.held(fleet), dict(known)
        for name in dict.fromkeys(name for candidate in self.candidates() for name in candidate):
            if name not in made:
                weights, architecture = held[name]
                model = fleet.model if architecture is None else fleet.architecture(architecture)
                made[name] = fleet.predict(weights, model).logits
        parts = [[made[name] for name in candidate] for candidate in self.candidates()]
        return [mean_prediction(*part) if len(part) > 1 else part[0] for part in parts]

    def state_of_predictions(self, fleet: Fleet) -> Iterator[Tensor]:
        """Yields all tensors of the clients' state that predictions are made of."""
        yield fleet.state.choice
        for weights, _ in self.held(fleet).values():
            yield from (leaf for _, leaf in flatten(weights))

    def predictors(self, fleet: Fleet) -> Mapping[str, Held]:
        place = int(fleet.state.choice[0]) if self.chooses else 0
        held = self.held(fleet)
        return {name: held[name] for name in self.candidates()[place]}

    def model_alone(self) -> bool:
        return list(self.candidates()) == [(OWN,)]
