"""FedAvgM. Hsu, Qi and Brown: Measuring the effects of non-identical data distribution for federated visual
classification. arXiv 1909.06335, 2019. FedAdagrad, FedYogi and FedAdam. Reddi, Charles, Zaheer, Garrett, Rush, Konecny,
Kumar and McMahan: Adaptive federated optimization. ICLR 2021."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from graft.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg whose server goes on in the direction of its last steps."""

    experiment_defaults: ClassVar[Mapping[str, Any]] = {"server_optimizer": "momentum"}


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server takes steps of Adam towards the average."""

    experiment_defaults: ClassVar[Mapping[str, Any]] = {"server_optimizer": "adam"}


@dataclass(frozen=True)
class FedYogi(FedAvg):
    """FedAvg whose server takes steps of Yogi towards the average: Adam whose mean square falls slowly."""

    experiment_defaults: ClassVar[Mapping[str, Any]] = {"server_optimizer": "yogi"}


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """FedAvg whose server takes steps of Adagrad towards the average: ever smaller ones."""

    experiment_defaults: ClassVar[Mapping[str, Any]] = {"server_optimizer": "adagrad"}
