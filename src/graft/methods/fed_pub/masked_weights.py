"""Weights times masks and what penalties ask of both, in few passes over memory: that is what training masks costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from graft.tensors.trees import Tree, Weights, flatten, trainable, unflatten, unsqueeze_to

if TYPE_CHECKING:
    from graft.federation.fleet import Fleet


def masked_and_measured(
    weights: Weights, masks: Weights, received: Weights, fleet: Fleet
) -> tuple[Tree, Tensor, Tensor]:
    """Returns weights times their masks, the sum of the Euclidean distances of each client's tensors from the received
    model, and the sum of the absolute values of its masks."""
    mask_of, before = dict(flatten(masks)), dict(flatten(received))
    used, distances = dict(flatten(weights)), []
    sizes = [torch.zeros(len(fleet.clients), device=fleet.device)]
    for path, leaf in flatten(trainable(weights, fleet.model.frozen)):
        if path in mask_of:
            used[path], distance, size = cast(Any, _Masked).apply(leaf, mask_of[path], before[path])
            sizes.append(size)
        else:
            distance = lengths(leaf - before[path])
        distances.append(distance)
    return unflatten(used), torch.stack(distances).sum(0), torch.stack(sizes).sum(0)


class _Masked(torch.autograd.Function):
    """Autograd would make a tensor of every factor of the gradients; here each is written once and added into."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, received: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        moved = weight - received
        distance = lengths(moved)
        ctx.save_for_backward(weight, mask, moved, distance)
        return weight * mask, distance, mask.abs().flatten(1).sum(1)

    @staticmethod
    def backward(
        ctx: Any, to_used: Tensor | None, to_distance: Tensor | None, to_size: Tensor | None
    ) -> tuple[Tensor, Tensor, None]:
        weight, mask, moved, distance = ctx.saved_tensors
        if to_used is None:  # a module need not use all of its weights
            to_used = torch.zeros_like(weight)
        if to_distance is None:
            to_weight = to_used * mask
        else:
            # At 0, where training begins, the norm has the slope 0.
            force = torch.where(distance > 0, to_distance / distance, 0)
            to_weight = moved.mul_(unsqueeze_to(force, moved)).addcmul_(to_used, mask)
        if to_size is None:
            return to_weight, to_used * weight, None
        return to_weight, mask.sign().mul_(unsqueeze_to(to_size, mask)).addcmul_(to_used, weight), None


def lengths(leaf: Tensor) -> Tensor:
    """Returns the Euclidean norm of each client's part of a stacked tensor."""
    norms: Tensor = torch.linalg.vector_norm(leaf.reshape(len(leaf), -1), dim=1)
    return norms
