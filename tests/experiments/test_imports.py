"""What a run waits for before it starts: nothing that takes a second to import and is not needed."""

import subprocess
import sys

DATASET = "synthetic:nodes=120,degree=6,classes=3,features=8"
SLOW = ("torch_geometric", "torch._dynamo", "scipy.stats", "pandas", "polars", "matplotlib", "optuna", "vl_convert")


def test_a_run_imports_nothing_slow_that_it_does_not_need(tmp_path):
    words = ["run", "--dataset", DATASET, "--partition", "random", "--rounds", "1", "--method", "fedavg"]
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom graft.cli import app\n"
        f"result = CliRunner().invoke(app, {[*words, '--out', str(tmp_path / 'run')]!r})\n"
        "assert result.exit_code == 0, result.output\n"
        f"print(*(name for name in {SLOW!r} if name in sys.modules), 'torch' in sys.modules)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, timeout=300, capture_output=True, text=True)
    assert output.stdout.split() == ["True"]
