"""How many threads a run has."""

import os
from types import SimpleNamespace

import pytest
import torch

import graft
from graft.engines import threads as module
from graft.engines.threads import CpuUsage, choose_threads, free_cores, read_cpu_usage, usable_cores, use_threads


@pytest.mark.parametrize(
    ("everyone", "own", "cores", "free"),
    [
        (0.0, 0.0, 2, 2),  # nobody does anything
        (2.0, 2.0, 2, 2),  # all that is done is done here
        (4.0, 2.0, 2, 1),  # somebody else has a core
        (4.0, 0.0, 2, 1),  # all are taken; one must do
        (0.6, 0.2, 2, 2),  # others hardly do anything
        (20.0, 4.0, 16, 8),
    ],
)
def test_cores_are_free_that_others_leave_alone(everyone, own, cores, free):
    assert free_cores(CpuUsage(10, 100, 1), CpuUsage(12, 100 + everyone, 1 + own), cores) == free


def stat_file(tmp_path, *busy):
    """Returns a file as /proc/stat, with so many hundredths of a second of work by every core."""
    file = tmp_path / "stat"
    lines = [f"cpu{core} {ticks} 0 0 5000 0 0 0 0 0 0" for core, ticks in enumerate(busy)]
    file.write_text("\n".join([f"cpu  {sum(busy)} 0 0 9000 0 0 0 0 0 0", *lines, "intr 7"]))
    return file


@pytest.mark.parametrize(
    ("own", "busy", "free"),
    [
        (2.0, (300, 500, 100), 2),  # both cores were busy for a second, with work of this program alone
        (0.0, (300, 500, 100), 1),  # the same work, done by others
        (1.0, (300, 500, 100), 1),
        (0.0, (200, 400, 900), 2),  # others work on a core that is not open to this program
    ],
)
def test_work_done_here_is_not_taken_for_that_of_others(own, busy, free, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    usage = []
    for now, worked, ticks in ((10.0, 5.0, (200, 400, 100)), (11.0, 5.0 + own, busy)):
        monkeypatch.setattr(module, "Path", lambda _, ticks=ticks: stat_file(tmp_path, *ticks))
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda now=now: now, process_time=lambda t=worked: t)
        )
        usage.append(read_cpu_usage())
    assert free_cores(*usage, cores=2) == free


def test_this_system_says_what_its_cores_do_and_counts_work_that_is_done_here():
    before = read_cpu_usage()
    if before is None:
        pytest.skip("this system does not say what its cores do")
    sum(range(3_000_000))
    after = read_cpu_usage()
    assert after.own > before.own
    assert after.everyone >= before.everyone > 0


def usual(monkeypatch, count):
    """PyTorch has this many threads, and nobody asked for that."""
    monkeypatch.setattr(module, "DEFAULT_THREADS", count)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)


def test_what_somebody_said_holds(monkeypatch):
    usual(monkeypatch, 8)
    monkeypatch.setattr(module, "read_cpu_usage", lambda: CpuUsage(11, 200, 1))
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    before = CpuUsage(10, 197, 1)  # three cores are taken
    assert choose_threads(0, before, {}) == 5
    assert choose_threads(7, before, {}) == 7
    assert choose_threads(0, before, {"OMP_NUM_THREADS": "8"}) == 8
    assert choose_threads(0, None, {}) == 8  # a system that does not say, or a GPU
    monkeypatch.setattr(module, "DEFAULT_THREADS", 4)
    assert choose_threads(0, before, {}) == 8


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 4), ("50000 100000", 1), (None, 4)])
def test_a_container_has_the_cores_that_it_was_given(quota, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    if quota:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "cpu.max")
    assert usable_cores() == cores


def test_a_run_has_the_threads_it_asks_for_and_leaves_them_as_they_were():
    before = torch.get_num_threads()
    result = graft.run("fedavg", "digits", rounds=1, clients=2, device="cpu", threads=2)
    assert result.summary["threads"] == 2
    assert torch.get_num_threads() == before


def test_threads_are_put_back_after_a_failure_too():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), use_threads(3):
        1 / (torch.get_num_threads() - 3)
    assert torch.get_num_threads() == before
