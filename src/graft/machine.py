"""What the machine has free."""

import re
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


def _read_numbers(path: str, pattern: str) -> list[int]:
    try:
        return [int(number) for number in re.findall(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)]
    except OSError:
        return []
