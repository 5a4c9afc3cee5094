"""Calls as tasks of a Ray cluster: what each comes to, what they share, and what cannot start."""

import pytest

from graft.engines.ray import Resources
from graft.engines.tasks import RETRIES, Lost, Tasks, capacity
from graft.errors import RunError

VERSION = "1.2"


def squares(stop, items, offset):
    """Squares numbers; a number below zero ends the task, as if Ctrl-C had been heard there."""
    assert not stop()
    yield VERSION
    for item in items:
        if item < 0:
            return
        yield item * item + offset


def broken(stop, items, offset):
    raise ValueError("no such disk")
    yield stop, items, offset


def start(ray, function, chunks, version=VERSION, **options):
    made = []

    def pack(items, share):
        return items, share("offset", lambda: made.append(1) or 100)

    return Tasks(ray, function, chunks, Resources(), pack, version, **options), made


def test_every_item_is_told_of_and_what_tasks_share_is_made_once(ray_cluster):
    tasks, made = start(ray_cluster, squares, [[1, 2], [3], [4]], most=2)
    assert sorted(tasks.results()) == [(1, 101), (2, 104), (3, 109), (4, 116)]
    assert made == [1]
    tasks.close()


def test_an_item_at_which_tasks_end_is_given_up_and_those_after_it_are_not(ray_cluster):
    tasks, _ = start(ray_cluster, squares, [[1, -1, 2]])
    (first, lost, last) = tasks.results()
    assert (first, last) == ((1, 101), (2, 104))
    assert lost[0] == -1
    assert isinstance(lost[1], Lost)
    assert f"died {RETRIES + 1} times" in lost[1].reason
    tasks.close()


def test_workers_of_another_version_and_functions_that_cannot_start_end_the_call(ray_cluster):
    tasks, _ = start(ray_cluster, squares, [[1]], version="1.3")
    with pytest.raises(RunError, match=r"has version 1\.2 of Graft, but this machine 1\.3"):
        list(tasks.results())
    tasks.close()
    tasks, _ = start(ray_cluster, broken, [[1]])
    with pytest.raises(RunError, match="Runs cannot start on the cluster: ValueError: no such disk"):
        list(tasks.results())
    tasks.close()


def test_what_has_not_begun_is_not_run_after_a_stop(ray_cluster):
    tasks, _ = start(ray_cluster, squares, [[number] for number in range(20)], most=1)
    results = tasks.results()
    assert next(results) == (0, 100)
    assert len(list(tasks.stop())) < 3
    tasks.close()


def test_capacity_is_that_of_single_machines(ray_cluster):
    cores = int(ray_cluster.cluster_resources()["CPU"])
    assert capacity(ray_cluster, Resources(cpus=2)) == cores // 2
    assert capacity(ray_cluster, Resources(cpus=cores + 1)) == 0
    assert capacity(ray_cluster, Resources(cpus=1, gpus=0.5)) == 0
