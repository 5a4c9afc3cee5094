"""FedBN. Li, Jiang, Zhang, Kamp and Dou: FedBN: federated learning on non-IID features via local batch normalization.
ICLR 2021."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from graft.errors import InputError
from graft.methods.fedrep import PartlyShared

if TYPE_CHECKING:
    from graft.models.architecture import Model


@dataclass(frozen=True)
class FedBN(PartlyShared):
    """FedAvg in which normalisation layers, weights and statistics, stay with their clients."""

    keeps_start: ClassVar[bool] = False  # normalisation layers start at ones and zeros everywhere
    experiment_defaults: ClassVar[Mapping[str, Any]] = {"models": "gin"}  # of Graft's own models, the one that has any

    def private(self, model: Model, paths: frozenset[str]) -> frozenset[str]:
        if not model.normalisation:
            raise InputError(
                f"FedBN leaves the normalisation layers of a model with its client, and {model.name} has none, so it "
                "would be FedAvg: use gin, or a module of your own with layers such as BatchNorm or LayerNorm."
            )
        return model.normalisation & paths
