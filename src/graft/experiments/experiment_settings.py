"""What editors and type checkers know of the keywords of `graft.run`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class ExperimentSettings(TypedDict, total=False):
    """The keywords of `graft.run` beside the method, the dataset and the models: the other fields of `Experiment`."""

    plug: str
    settings: dict[str, Any]
    clients: int
    partition: str
    split: str
    graphs: list[str]
    inductive: bool
    features: Literal["auto", "raw", "row", "l2", "standard"]
    feature_norm: float
    scaling: Literal["local", "federated"]
    label_sparsity: float
    label_noise: float
    edge_sparsity: float
    edge_noise: float
    feature_sparsity: float
    feature_noise: float
    perturbed_clients: str
    evaluate_on: Literal["clean", "perturbed"]
    width: int
    dropout: float
    head: Literal["linear", "conv"]
    initial_weights: Literal["common", "own"]
    rounds: int
    epochs: int
    least_epochs: int
    batches: int
    loss: Literal["cross_entropy", "focal"]
    focal_gamma: float
    class_weights: Literal["none", "balanced"]
    optimizer: Literal["adam", "sgd", "momentum"]
    learning_rate: float
    weight_decay: float
    clip_norm: float
    optimizer_state: Literal["persistent", "reset"]
    seed: int
    weight_by: Literal["nodes", "train", "uniform"]
    average: str
    server_optimizer: Literal["none", "sgd", "momentum", "adam", "yogi", "adagrad"]
    server_rate: float
    server_momentum: float
    server_beta2: float
    server_tau: float
    participation: float
    topology: str
    metric: str
    score: Literal["personal", "global"]
    judge_on: Literal["validation", "training"]
    evaluate_every: int
    evaluate_clients: Literal["all", "participants"]
    patience: int
    device: Literal["auto", "cpu", "cuda"]
    engine: Literal["in_process", "loopback", "ray"]
    workers: int
    cpus_per_worker: int
    gpus_per_worker: float
    address: str
    max_failures: int
    precision: Literal["float32", "tf32"]
    threads: int
    memory: str
    checkpoint_every: int
