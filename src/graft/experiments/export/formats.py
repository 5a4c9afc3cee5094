"""Modules as files that need neither Graft nor PyG: TorchScript and ONNX, kept only where they give the same."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graft.errors import InputError

SIZES = ((9, 14), (23, 60))  # nodes and edges of the graphs that a file is tried on; other than that it is made with
EXAMPLE = (13, 30)
TOLERANCE = 1e-5  # of the largest logit, or of 1 where all are smaller

NAMES = ("x", "edge_index", "edge_weight")


class InputKind(NamedTuple):
    """What a module takes."""

    features: int
    weighted: bool  # whether it can be given the weights of edges


def random_inputs(kind: InputKind, nodes: int, edges: int) -> tuple[Tensor, ...]:
    """Returns features, edges in both directions and, if a module takes them, their weights, of a random graph."""
    random = torch.Generator().manual_seed(nodes)
    ends = torch.randint(0, nodes, (2, edges), generator=random).unique(dim=1)
    ends = ends[:, ends[0] < ends[1]]
    weight = 0.5 + torch.rand(ends.shape[1], generator=random)
    x = torch.randn(nodes, kind.features, generator=random)
    edge_index = torch.cat([ends, ends.flip(0)], dim=1)
    return (x, edge_index, torch.cat([weight, weight])) if kind.weighted else (x, edge_index)


def write_torchscript(module: nn.Module, kind: InputKind, path: Path) -> None:
    """Writes a module as TorchScript: compiled, or recorded where it cannot be compiled."""
    ways: dict[str, Callable[[], Any]] = {
        "compiled": lambda: torch.jit.script(module),
        "recorded": lambda: torch.jit.trace(module, random_inputs(kind, *EXAMPLE), check_trace=False),
    }
    reasons = []
    for way, make in ways.items():
        try:
            with quiet(), torch.no_grad():
                make().save(str(path))
                loaded = torch.jit.load(str(path))
                difference = largest_difference(module, kind, loaded)
        except Exception as error:  # whatever PyTorch cannot express in this form
            reasons.append(f"{way}: {first_line(error)}")
            continue
        if difference <= TOLERANCE:
            return
        reasons.append(f"{way}: it gives other logits, by {difference:.1g}")
    path.unlink(missing_ok=True)
    raise InputError(f"This model cannot be written as TorchScript ({'; '.join(reasons)}); leave --format out.")


def write_onnx(module: nn.Module, kind: InputKind, path: Path) -> None:
    """Writes a module as ONNX with inputs by the names of its arguments, for any number of nodes and edges."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (PyTorch's exporter needs it)
    except ImportError as error:
        raise InputError(
            f"--format onnx needs the package {error.name}: pip install 'graft-fgl[onnx]', or leave --format out."
        ) from None
    names = list(NAMES if kind.weighted else NAMES[:2])
    try:
        with quiet(), torch.no_grad():
            sizes = {name: torch.export.Dim(name, min=2) for name in ("nodes", "edges")}
            shapes = ({0: sizes["nodes"]}, {1: sizes["edges"]}, {0: sizes["edges"]})
            program: Any = torch.onnx.export(
                module,
                random_inputs(kind, *EXAMPLE),
                input_names=names,
                output_names=["logits"],
                dynamic_shapes=shapes[: len(names)],
                dynamo=True,
                verbose=False,
            )
            program.save(str(path))
            session = onnxruntime.InferenceSession(str(path))
            taken = {entry.name for entry in session.get_inputs()}

            def run(*inputs: Tensor) -> Tensor:
                given = {name: value.numpy() for name, value in zip(names, inputs, strict=True) if name in taken}
                return torch.from_numpy(session.run(None, given)[0])

            difference = largest_difference(module, kind, run)
    except Exception as error:  # whatever PyTorch cannot express in this form
        path.unlink(missing_ok=True)
        raise InputError(f"This model cannot be written as ONNX ({first_line(error)}); leave --format out.") from error
    if difference > TOLERANCE:
        path.unlink(missing_ok=True)
        raise InputError(f"This model as ONNX gives other logits, by {difference:.1g}; leave --format out.")


WRITERS: dict[str, Callable[[nn.Module, InputKind, Path], None]] = {
    "torchscript": write_torchscript,
    "onnx": write_onnx,
}


def largest_difference(module: nn.Module, kind: InputKind, other: Callable[..., Any]) -> float:
    """Returns how far two ways to compute logits are apart, on graphs of several sizes, as a share of the largest."""
    worst = 0.0
    for nodes, edges in SIZES:
        inputs = random_inputs(kind, nodes, edges)
        expected, given = logits_of(module(*inputs)), logits_of(other(*inputs))
        worst = max(worst, float((expected - given).abs().max() / expected.abs().max().clamp(min=1)))
    return worst


def logits_of(output: Any) -> Tensor:
    """Returns the logits of a module that may return a pair of embedding and logits."""
    logits: Tensor = output[1] if isinstance(output, tuple) else output
    return logits


def first_line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200].rstrip(".")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what PyTorch's exporters print and log to themselves; what counts is whether the file gives the same."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
