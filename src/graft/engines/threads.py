"""How many threads a run on a CPU has: as many as there are cores that nobody else uses.

PyTorch takes one for every core. They wait for each other by spinning; where other programs want the cores too, they
mostly wait for one that is not running, and a run with two threads was seen to take many times as long as with one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

SAMPLE_SECONDS = 0.1  # between two samples of what the cores do: the kernel counts in hundredths
DEFAULT_THREADS = torch.get_num_threads()  # what PyTorch has where nobody said anything
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class CpuUsage(NamedTuple):
    """What has been done up to a moment, in seconds."""

    now: float
    everyone: float  # of work, by all programs on the cores that are open to this one
    own: float  # of work, by this program


def read_cpu_usage() -> CpuUsage | None:
    """Returns the usage up to now; None on a system that does not say."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    counted = [line.split()[1:] for line in lines if line.split(" ", 1)[0] in usable]
    if not counted:
        return None
    # User, nice and system, then two kinds of idleness, then interrupts and what other machines on this one took.
    ticks = sum(int(core[column]) for core in counted for column in (0, 1, 2, 5, 6, 7))
    return CpuUsage(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


def free_cores(before: CpuUsage, after: CpuUsage, cores: int) -> int:
    """Returns how many cores others have left alone between two samples, and at least one."""
    others = (after.everyone - before.everyone) - (after.own - before.own)
    return max(1, min(cores, round(cores - others / max(after.now - before.now, 1e-9))))


def cores() -> int:
    """Returns how many cores are open to this program."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Returns how many of them it may keep busy: in a container, as many as it was given."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores(), math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or no quota ("max")
        return cores()


def choose_threads(requested: int, before: CpuUsage | None, environment: Mapping[str, str] = os.environ) -> int:
    """Returns the number of threads: the one that was asked for, here or of PyTorch, or else one for every free
    core."""
    now = torch.get_num_threads()
    if requested:
        return requested
    if now != DEFAULT_THREADS or before is None or any(environment.get(name) for name in THREAD_VARIABLES):
        return now
    time.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - before.now)))
    after = read_cpu_usage()
    return now if after is None else min(now, free_cores(before, after, usable_cores()))


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Runs a block with so many PyTorch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
