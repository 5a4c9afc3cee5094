"""What the machine has free, and what this program has used of it."""

import re
import sys
from pathlib import Path

UNKNOWN_RAM = 4 * 10**9  # a machine that does not say gets by with 4 GB


def free_ram() -> int:
    """Returns how many bytes of RAM are free: in a container, of what it was given."""
    free = _read_numbers("/proc/meminfo", r"MemAvailable:\s+(\d+)")
    limit, used = (_read_numbers(f"/sys/fs/cgroup/memory.{name}", r"^(\d+)") for name in ("max", "current"))
    limits = [1024 * free[0]] if free else []
    if limit and used:
        limits.append(limit[0] - used[0])
    return max(min(limits, default=UNKNOWN_RAM), 0)


def peak_ram() -> int:
    """Returns the most bytes of RAM that this program has held; `getrusage` would count the program that started it."""
    peak = _read_numbers("/proc/self/status", r"VmHWM:\s+(\d+)")
    if peak:
        return 1024 * peak[0]
    import resource  # which not every system has

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def _read_numbers(path: str, pattern: str) -> list[int]:
    try:
        return [int(number) for number in re.findall(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)]
    except OSError:
        return []
