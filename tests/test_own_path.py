"""A user's own path: from a CSV and a model directory to a LoRA run that is killed and goes on."""

import csv
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest
from conftest import timeless

import workbench as wb

pytest.importorskip("peft", reason="peft is not installed: pip install 'workbench-rlvr[lora]'")
pytestmark = pytest.mark.long

SCRIPT = """
    import sys
    import workbench as wb

    data, out = sys.argv[1:3]

    pool = wb.problems.from_file(data, prompt="question", answer="gold", level="digits")
    train, held_out = pool.split(8)
    lab = wb.labs.transformers(
        wb.labs.shipped("models/early-small"),
        train,
        held_out,
        verifier=wb.verifiers.Math(boxed=True),
        sampling=wb.policies.Sampling(max_new_tokens=24),
        lora={"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
        learning_rate=1e-3,
    )
    run = wb.Run(
        lab, wb.methods.pods(8, 4), seed=1, out=out,
        problems_per_round=4, evaluate_every=4, checkpoint_every=2,
    )
    for row in run.rounds(7, progress=False):
        print("round", row["round"], flush=True)
"""


def train(folder, out, kill_after=None):
    """Run the script; SIGKILL once that round is printed."""
    script = Path(folder, "own.py")
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(folder / "own.csv"), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    said = []
    for line in process.stdout:
        said.append(line.split()[1])
        if said[-1] == str(kill_after):
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    assert process.wait() == (0 if kill_after is None else -signal.SIGKILL)
    return said


@pytest.fixture
def folder(tmp_path):
    with open(tmp_path / "own.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "gold", "digits"])
        rows.writerows((f"{a}+{b}=", a + b, len(str(a + b))) for a in range(6) for b in range(4, 9))
    return tmp_path


def test_a_lora_run_on_own_data_is_killed_and_goes_on_bit_for_bit(folder):
    whole, killed = folder / "whole", folder / "killed"
    assert train(folder, whole) == list("1234567")
    train(folder, killed, kill_after=5)
    # It goes on behind the checkpoint of round 4.
    assert train(folder, killed) == list("567")
    ours, theirs = wb.load(killed, strict=True), wb.load(whole, strict=True)
    for kind in ("rounds", "evals"):
        first, second = timeless(getattr(ours, kind)), timeless(getattr(theirs, kind))
        pd.testing.assert_frame_equal(first, second, check_exact=True)
    table = ours.rollouts([7])
    assert len(table) == 32 and table["selected"].sum() == 16
    assert set(theirs.evals["problem"]).isdisjoint(theirs.rollouts()["problem"])
