"""The contract that every method keeps, runnable against a method of your own: `check_method(MyMethod)`."""

from __future__ import annotations

import torch

from graft.testing import averages, capture, contract, labels, leaks, logged, wire
from graft.testing.claim import Claim, ContractError, MethodLike, as_method

__all__ = ["ContractError", "check_method", "claims"]

CLAIMS = (
    contract.training_changes_predictions,
    contract.same_seed_same_weights,
    contract.a_fleet_equals_its_clients_one_by_one,
    wire.in_process_equals_messages_as_bytes,
    averages.averaged_fields_are_read_as_means_alone,
    logged.logged_fields_are_only_put_on_record,
    contract.resumed_equals_unbroken,
    contract.clients_that_are_not_asked_keep_their_state,
    contract.messages_are_trees,
    leaks.every_field_that_leaves_is_declared,
    leaks.fields_depend_on_what_they_declare,
    leaks.no_message_holds_raw_data,
    labels.labels_of_test_nodes_change_nothing,
    labels.labels_of_validation_nodes_are_read_as_declared,
    contract.no_state_appears_after_the_first_round,
    contract.settings_are_checked,
    contract.search_spaces_can_be_tried,
    contract.a_federation_of_one_trains,
    contract.a_client_without_edges_is_fine,
    contract.a_client_without_labels_is_fine,
    contract.weights_of_edges_are_fine,
)
GPU_CLAIMS = (capture.rounds_are_captured_as_declared, capture.a_gpu_gives_what_a_cpu_gives)


def claims(*, gpu: bool | None = None) -> list[tuple[str, Claim]]:
    """Returns the claims of the contract in words, each with the function that proves it of a method.

    A claim is made of an instance, of a class with its default settings, or of a name as `--method` takes it, and
    raises where it does not hold. Those about a GPU are left out where there is none, unless asked for.
    """
    functions = [*CLAIMS, *(GPU_CLAIMS if gpu or (gpu is None and torch.cuda.is_available()) else ())]
    return [(function.__name__.replace("_", " "), function) for function in functions]


def check_method(method: MethodLike) -> None:
    """Runs all claims of the contract; raises a ContractError that names every one which does not hold, and why."""
    instance = as_method(method)
    failures = []
    for name, proves in claims():
        try:
            proves(instance)
        except Exception as error:  # a broken method may raise anything
            failures.append(f"{name}: {str(error).strip() or type(error).__name__}")
    if failures:
        broken = "\n  ".join(failures)
        raise ContractError(f"{type(instance).__name__} breaks {len(failures)} claims of the contract:\n  {broken}")
