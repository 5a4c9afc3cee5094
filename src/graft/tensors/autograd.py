"""Autograd functions of our own, called with types."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def apply_function(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Returns the tensor that `function.apply` returns, whose types PyTorch does not declare."""
    output: Tensor = cast(Any, function).apply(*arguments)
    return output
