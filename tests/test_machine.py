"""What is asked of the machine, and what it answers."""

import subprocess
import sys

import numpy as np

from graft.machine import peak_ram

PEAK = "from graft.machine import peak_ram; held = bytearray({held}); print(peak_ram())"


def peak_of_a_program(held=0):
    command = [sys.executable, "-c", PEAK.format(held=held)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_peak_is_of_this_program_and_not_of_the_one_that_started_it():
    held = np.ones(40_000_000)  # 320 MB
    assert peak_ram() > held.nbytes
    assert peak_of_a_program() < held.nbytes / 2
    assert peak_of_a_program(held=held.nbytes) > held.nbytes
