"""The loop and its record: what is promised, exactly repeated, never lost."""

import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import wait
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from conftest import (
    go,
    same_record,
    same_weights,
    small_lab,
    started,
    timeless,
    tiny_policy,
    weights,
)
from small_methods import NAMES, small

import workbench as wb
from workbench.catalogue.greso import Greso
from workbench.grpo import NonFinite
from workbench.rollouts import Ragged
from workbench.rules.allocators import More, Uniform
from workbench.rules.curricula import ShuffledEpochs
from workbench.slots import Slot
from workbench.verifiers import STATUSES, Scores

SMALL = {"problems_per_round": 4, "evaluate_every": 2, "checkpoint_every": 2}


@pytest.mark.slow
def test_a_run_leaves_what_the_design_says(lab, tmp_path):
    run = wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path / "run", **SMALL)
    rows = go(run, 4)
    record = wb.load(tmp_path / "run")
    rounds, rollouts, evals = record.rounds, record.rollouts(), record.evals
    assert [row["round"] for row in rows] == rounds["round"].tolist() == [1, 2, 3, 4]
    assert len(rollouts) == 4 * 4 * 4 == rounds["rollouts"].sum()
    assert (rollouts.groupby(["round", "problem"]).size() == 4).all()
    assert sorted(evals["round"].unique()) == [0, 2, 4]
    assert (evals.groupby("round").size() == 12).all()
    assert np.allclose(rollouts.groupby("round")["reward"].mean(), rounds["reward"])
    effective = rollouts.groupby("round")["advantage"].apply(lambda a: (a != 0).mean())
    assert np.allclose(effective, rounds["effective_gradient_ratio"])
    assert (rollouts["trained"] == (rollouts["advantage"] != 0)).all()
    assert rollouts["selected"].all()
    counted = rounds[[f"status_{name}" for name in STATUSES]].sum(axis=1)
    assert (counted == rounds["rollouts"]).all()
    assert (rounds["flops"] > 0).all()
    assert (rounds["seconds"] > 0).all()
    for column in ("seconds", "seconds_generate", "seconds_update"):
        assert all(value == float(f"{value:.3g}") for value in rounds[column])
    assert rounds["entropy"].gt(0).all()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["method"]["allocator"] == {"is": "allocators.Uniform", "n": 4}
    assert manifest["versions"]["torch"]
    assert manifest["lab"]["lab"] == "tiny"
    assert manifest["hardware"]["threads"] == 1
    files = {p.suffix for p in (tmp_path / "run").rglob("*") if p.is_file()}
    assert files == {".json", ".jsonl", ".parquet", ".safetensors"}


@pytest.mark.slow
def test_same_seed_same_run_other_seed_other_run(lab, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        go(wb.Run(lab, wb.methods.grpo(n=4), seed=seed, out=tmp_path / name, **SMALL), 2)
    a, b, c = (wb.load(tmp_path / name) for name in "abc")
    same_record(a, b)
    assert same_weights(a.path, b.path)
    assert a.rollouts()["problem"].tolist() != c.rollouts()["problem"].tolist()


@pytest.mark.slow
def test_methods_share_problems_weights_and_evaluation_draws(lab, tmp_path):
    for name, method in (("a", wb.methods.grpo(n=4)), ("b", wb.methods.dr_grpo(n=2))):
        go(wb.Run(lab, method, out=tmp_path / name, **SMALL), 2)
    a, b = wb.load(tmp_path / "a"), wb.load(tmp_path / "b")
    assert a.rollouts()["problem"].unique().tolist() == b.rollouts()["problem"].unique().tolist()
    first_of_a = a.evals[a.evals["round"] == 0]
    first_of_b = b.evals[b.evals["round"] == 0]
    pd.testing.assert_frame_equal(timeless(first_of_a), timeless(first_of_b))


@pytest.mark.slow
def test_rounds_go_on_where_they_stopped(lab, tmp_path):
    method = wb.methods.grpo(n=4)
    go(wb.Run(lab, method, out=tmp_path / "whole", **SMALL), 5)
    run = wb.Run(lab, method, out=tmp_path / "parts", **SMALL)
    for row in run.rounds(5, progress=False):
        if row["round"] == 3:
            break  # between two checkpoints: leaving the loop writes one
    assert [row["round"] for row in go(wb.Run.resume(tmp_path / "parts"), 5)] == [4, 5]
    assert go(wb.Run.resume(tmp_path / "parts"), 5) == []
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "parts"))
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def test_a_round_without_gradient_after_a_resume_moves_by_momentum_all_the_same(policy, tmp_path):
    import torch

    from workbench.grpo import grpo_step
    from workbench.records import checkpoints

    rollouts = policy.generate(["1+2="], [4], wb.policies.Sampling(max_new_tokens=12), seed=0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    grpo_step(policy, optimizer, rollouts, [1.0, -1.0, 1.0, -1.0])
    resumed = tiny_policy()
    again = torch.optim.AdamW(resumed.parameters(), lr=1e-3)
    method = wb.methods.grpo()
    checkpoints.save(tmp_path / "state", *checkpoints.pack(policy, optimizer, method))
    checkpoints.unpack(*checkpoints.load(tmp_path / "state"), resumed, again, method)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    grpo_step(policy, optimizer, rollouts, np.zeros(4))
    grpo_step(resumed, again, rollouts, np.zeros(4))
    after = policy.state_dict()
    after_resume = resumed.state_dict()
    assert all(torch.equal(after[name], after_resume[name]) for name in after)
    assert any(not torch.equal(after[name], before[name]) for name in after)


class Interrupting:
    """Raises KeyboardInterrupt in the middle of round 3, once."""

    def __init__(self, verifier):
        self.verifier = verifier
        self.calls = 0

    def score(self, responses, answers):
        self.calls += len(responses) == 16
        if self.calls == 3:
            self.calls = 99
            raise KeyboardInterrupt
        return self.verifier.score(responses, answers)


@pytest.mark.slow
def test_an_interrupted_round_leaves_no_trace(lab, tmp_path):
    method = wb.methods.grpo(n=4)
    go(wb.Run(lab, method, out=tmp_path / "whole", **SMALL), 5)
    interrupted = replace(lab, verifier=Interrupting(lab.verifier))
    run = wb.Run(interrupted, method, out=tmp_path / "stopped", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        go(run, 5)
    # The same object goes on, as a notebook would.
    assert [row["round"] for row in go(run, 5)] == [3, 4, 5]
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "stopped"))
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


PROCESSES = """
import os, sys
import workbench as wb

lab = wb.labs.tiny(pool=8, base="clean", levels=(1,), held_out=0)

def run_at(out):
    return wb.Run(lab, wb.methods.grpo(2), out=out, problems_per_round=2)

run, aside = run_at(sys.argv[1]), run_at(None)
loop = run.rounds(3, progress=False)
next(loop)
next(aside.rounds(1, progress=False))
parent = os.getpid()
if not os.fork():
    for go_on in (lambda: next(loop), lambda: next(run.rounds(3, progress=False))):
        try:
            go_on()
        except wb.records.RecordError as error:
            assert f"process {parent}" in str(error), error
        else:
            raise AssertionError("the child has written")
    sys.exit()
_, status = os.wait()
assert status == 0
assert aside.record.rounds["round"].tolist() == [1], "it goes with the parent, not with the child"
# Between two calls nobody holds the lock: the child may go on, and then the parent begins anew.
list(loop)
if not os.fork():
    list(run.rounds(4, progress=False))
    sys.exit()
_, status = os.wait()
assert status == 0
assert [row["round"] for row in run.rounds(5, progress=False)] == [5]

# Loops that are open when Python ends. A record that goes with the process goes after its loop.
left_open = run_at(sys.argv[2]).rounds(5, progress=False)
next(left_open)
another = aside.rounds(3, progress=False)
next(another)
"""


@pytest.mark.long
def test_a_fork_never_writes_its_parents_rounds_and_an_open_loop_leaves_a_checkpoint(tmp_path):
    run, left_open = tmp_path / "run", tmp_path / "open"
    command = [sys.executable, "-c", PROCESSES, str(run), str(left_open)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert weights(left_open), "nothing has to be made again"
    assert [row["round"] for row in go(wb.Run.resume(left_open), 2)] == [2]
    lab = wb.labs.tiny(pool=8, base="clean", levels=(1,), held_out=0)
    whole = wb.Run(lab, wb.methods.grpo(2), out=tmp_path / "whole", problems_per_round=2)
    go(whole, 5)
    same_record(whole.record, wb.load(run))
    assert same_weights(tmp_path / "whole", run)


class TestEvaluationOffTheGrid:
    """The last round asked for is evaluated; when the run goes on, it is as if it had not been."""

    options: ClassVar = {"problems_per_round": 2, "evaluate_every": 4, "checkpoint_every": 5}

    def run(self, lab, path):
        return wb.Run(lab, wb.methods.grpo(n=2), out=path, **self.options)

    def evaluated(self, path):
        return wb.load(path).evals["round"].unique().tolist()

    @pytest.mark.slow
    def test_five_rounds_and_then_ten_are_ten_rounds(self, lab, tmp_path):
        go(self.run(lab, tmp_path / "whole"), 10)
        go(self.run(lab, tmp_path / "parts"), 5)
        assert self.evaluated(tmp_path / "parts") == [0, 4, 5]
        go(wb.Run.resume(tmp_path / "parts"), 10)
        assert self.evaluated(tmp_path / "parts") == [0, 4, 8, 10]
        same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "parts"))
        assert same_weights(tmp_path / "whole", tmp_path / "parts")

    @pytest.mark.slow
    def test_it_stays_while_the_run_does_not_go_on(self, lab, tmp_path):
        run = self.run(lab, tmp_path)
        go(run, 5)
        before = wb.load(tmp_path).evals
        for again in (run, wb.Run.resume(tmp_path)):
            assert go(again, 5) == []
            assert go(again, 3) == []
            pd.testing.assert_frame_equal(wb.load(tmp_path).evals, before)

    @pytest.mark.slow
    def test_an_interrupted_last_evaluation_is_made_when_the_rounds_are_asked_for_again(
        self, lab, tmp_path
    ):
        class Once:
            """Interrupts the third evaluation, that after round 5, once."""

            evaluations = 0

            def score(self, responses, answers):
                if len(responses) == 24:  # 12 held-out problems, 2 samples each
                    self.evaluations += 1
                    if self.evaluations == 3:
                        raise KeyboardInterrupt
                return lab.verifier.score(responses, answers)

        go(self.run(lab, tmp_path / "whole"), 5)
        run = self.run(replace(lab, verifier=Once()), tmp_path / "stopped")
        with pytest.raises(KeyboardInterrupt):
            go(run, 5)
        assert self.evaluated(tmp_path / "stopped") == [0, 4]
        assert go(run, 5) == [], "all five rounds are there"
        same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "stopped"))


class TestRoundsSoFar:
    """`run.round` is the number of rounds in the record, whoever made them."""

    @pytest.mark.slow
    def test_before_the_first_and_after_each(self, lab, tmp_path):
        run = wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL)
        assert run.round == 0
        assert [run.round for _ in run.rounds(3, progress=False)] == [1, 2, 3]
        assert run.round == 3

    @pytest.mark.slow
    def test_of_a_resumed_and_of_a_finished_run(self, lab, tmp_path):
        go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL), 3)
        resumed = wb.Run.resume(tmp_path)
        assert resumed.round == 3
        assert resumed.policy is None
        assert go(resumed, 3) == []
        assert resumed.round == 3
        assert go(resumed, 2) == [], "fewer rounds than there are"
        assert resumed.round == 3

    @pytest.mark.slow
    def test_after_an_interrupt_they_are_those_of_the_record(self, lab, tmp_path):
        verifier = Interrupting(lab.verifier)
        options = {**SMALL, "evaluate_every": 0, "checkpoint_every": 5}
        run = wb.Run(replace(lab, verifier=verifier), wb.methods.grpo(n=4), out=tmp_path, **options)
        with pytest.raises(KeyboardInterrupt):
            go(run, 4)
        assert run.round == len(wb.load(tmp_path).rounds) == 2
        assert run.policy is None, "what was learnt since the checkpoint is gone"
        # Without a checkpoint yet, the two rounds are made again.
        assert [row["round"] for row in go(run, 4)] == [1, 2, 3, 4]
        assert run.round == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "every, said",
    [
        (5, "begins anew, since it has a checkpoint every 5 rounds; .* \\(round 1, 2\\) is made"),
        (1, None),
    ],
)
def test_a_run_that_was_interrupted_says_from_where_it_goes_on(every, said, lab, tmp_path, capsys):
    verifier = Interrupting(lab.verifier)
    run = wb.Run(
        replace(lab, verifier=verifier),
        wb.methods.grpo(n=4),
        out=tmp_path,
        problems_per_round=4,
        evaluate_every=0,
        checkpoint_every=every,
    )
    with pytest.raises(KeyboardInterrupt):
        list(run.rounds(4))
    assert "made again" not in capsys.readouterr().err
    list(run.rounds(4))
    lines = [line for line in capsys.readouterr().err.splitlines() if "made again" in line]
    assert len(lines) == (said is not None)
    assert not said or re.search(f"^grpo: {said}", lines[0])


def eight_rounds(out, told):
    """What is killed: it tells every round that is on disk."""
    run = wb.Run(small_lab(), wb.methods.grpo(n=4), out=out, **SMALL)
    for row in run.rounds(8, progress=False):
        told.send(row["round"])


@pytest.mark.long
def test_killed_at_random_moments_and_resumed_bit_for_bit(tmp_path):
    out = tmp_path / "killed"
    rng = random.Random(3)
    kills = 0
    while True:
        with started(eight_rounds, out) as child:
            if kills < 4:
                # At least one round, then a random moment.
                wait([child.told, child.process.sentinel])
                time.sleep(rng.uniform(0, 0.25))
                child.process.kill()
        if child.process.exitcode == 0:
            break
        assert child.process.exitcode == -signal.SIGKILL
        kills += 1
        # Readable after every crash.
        assert len(wb.load(out).rounds) >= 1
        assert len(wb.load(out).rollouts()) >= 16
    assert kills >= 2, "the run ended before it could be killed"
    go(wb.Run(small_lab(), wb.methods.grpo(n=4), out=tmp_path / "whole", **SMALL), 8)
    same_record(wb.load(tmp_path / "whole"), wb.load(out))
    assert same_weights(tmp_path / "whole", out)


def test_a_directory_with_another_run_is_refused(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 1)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"holds another run .*: method.allocator.n: 8, 4"):
        wb.Run(lab, wb.methods.grpo(n=8), out=tmp_path, **SMALL)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_record_without_its_checkpoint_is_not_overwritten(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 3)
    (tmp_path / "checkpoint" / "state.safetensors").unlink()
    with pytest.raises(ValueError, match="3 rounds and no checkpoint"):
        go(wb.Run.resume(tmp_path), 4)
    assert len(wb.load(tmp_path).rounds) == 3


def test_a_directory_with_other_files_is_refused(lab, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="no record"):
        go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 1)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def with_a_quota(out, limit, told):
    """A run in whose fourth round no file may grow beyond the limit any more."""
    run = wb.Run(small_lab(), wb.methods.grpo(n=4), out=out, **{**SMALL, "evaluate_every": 0})
    for row in run.rounds(8, progress=False):
        if row["round"] == 3:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit, what, kept", [(1024, "round 4", 3), (1_000_000, "the checkpoint", 4)]
)
@pytest.mark.long
def test_a_quota_in_the_middle_names_the_cause_and_loses_nothing(limit, what, kept, tmp_path):
    out = tmp_path / "run"
    with started(with_a_quota, out, limit) as child:
        last = child.told.recv()
    assert last.startswith("RecordError: ")
    assert f"cannot write {what}: " in last
    assert "File too large" in last
    assert f"rounds 1 to {kept} are kept" in last
    assert wb.load(out).rounds["round"].tolist() == list(range(1, kept + 1))
    assert len(wb.load(out).rollouts()) == 16 * kept
    assert not list(out.rglob("*.writing"))
    go(wb.Run.resume(out), 5)
    assert len(wb.load(out).rounds) == 5


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="mounting a small file system needs root on Linux",
)
def test_a_full_disk_loses_nothing(lab, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        run = wb.Run(lab, wb.methods.grpo(n=4), out=disk / "run", **SMALL)
        with pytest.raises(wb.records.RecordError, match="No space left on device; rounds 1 to"):
            for row in run.rounds(8, progress=False):
                if row["round"] == 2:
                    free = os.statvfs(disk)
                    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
        assert len(wb.load(disk / "run").rounds) >= 2
        (disk / "filler").unlink()
        assert len(go(wb.Run.resume(disk / "run"), 4)) >= 1
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_progress_in_a_file_is_a_plain_line_now_and_then(lab, tmp_path, capsys):
    run = wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL)
    list(run.rounds(4))
    said = capsys.readouterr().err
    assert "\r" not in said
    first, last = said.splitlines()
    assert first.startswith("grpo: round 1 of 4, reward 0.")
    assert last.startswith("grpo: round 4 of 4, reward 0.")
    list(run.rounds(5, progress=False))
    assert capsys.readouterr().err == ""


class Nan:
    """A verifier whose rewards are not numbers."""

    def score(self, responses, answers):
        return Scores(np.full(len(responses), np.nan), np.array(["ok"] * len(responses)))


def test_a_non_finite_reward_stops_the_round_and_keeps_its_rollouts(tmp_path):
    lab = replace(small_lab(), verifier=Nan(), held_out=None)
    with pytest.raises(
        NonFinite,
        match=r"round 1: the reward of 16 .*failed-000001.parquet",
    ):
        go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 1)
    kept = pd.read_parquet(tmp_path / "failed-000001.parquet")
    assert len(kept) == 16
    assert len(kept["response"][0]) > 0
    assert kept["text"].str.len().gt(0).all()


class Infinite(Slot):
    """Advantages of which one is not finite."""

    def __call__(self, rollouts, context):
        return np.where(np.arange(len(rollouts)) == 1, np.inf, 0.0)


def test_a_non_finite_advantage_stops_the_round_and_keeps_whole_groups(lab, tmp_path):
    method = wb.methods.grpo(n=4).but(advantage=Infinite())
    with pytest.raises(NonFinite, match=r"advantages of 1 .*failed-000001.parquet"):
        go(wb.Run(lab, method, out=tmp_path, **SMALL), 1)
    kept = pd.read_parquet(tmp_path / "failed-000001.parquet")
    assert len(kept) == 4 and kept["problem"].nunique() == 1
    assert np.isinf(kept["advantage"]).sum() == 1


def test_a_non_finite_loss_stops_the_round_and_keeps_its_rollouts(lab, tmp_path):
    run = wb.Run(
        lab,
        wb.methods.grpo(n=4, objective=wb.objectives.Objective(kl=1e308)),
        out=tmp_path,
        **SMALL,
    )  # 0 x inf
    with pytest.raises(
        NonFinite,
        match=r"round 1: the loss of .*failed-000001.parquet",
    ):
        go(run, 1)
    assert len(pd.read_parquet(tmp_path / "failed-000001.parquet")) > 0
    assert len(run.record.rounds) == 0


@pytest.mark.slow
def test_an_interrupted_first_evaluation_is_made_again(lab, tmp_path):
    class Once:
        calls = 0

        def score(self, responses, answers):
            self.calls += 1
            if self.calls == 1:
                raise KeyboardInterrupt
            return lab.verifier.score(responses, answers)

    run = wb.Run(replace(lab, verifier=Once()), wb.methods.grpo(n=4), out=tmp_path, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        go(run, 1)
    go(run, 1)
    assert run.record.evals["round"].unique().tolist() == [0, 1]


class TwoStages(Slot):
    """Two rollouts each, two more problems, two for those; keeps the first problem only."""

    def allocate(self, problems, context):
        yield np.full(len(problems), 2)
        problems = yield More(2)
        rollouts = yield np.array([0] * (len(problems) - 2) + [2, 2])
        return np.flatnonzero(rollouts.problem == problems[0].id)


@pytest.mark.slow
def test_allocators_are_generators(lab, tmp_path):
    method = wb.Method("staged", allocator=TwoStages())
    run = wb.Run(lab, method, out=tmp_path, **SMALL)
    row = go(run, 1)[0]
    rollouts = run.record.rollouts()
    assert row["problems"] == 6
    assert row["rollouts"] == 12
    assert row["selected"] == 2
    assert rollouts["stage"].tolist() == [0] * 8 + [1] * 4
    assert all(draws == [0, 1] for draws in rollouts.groupby("problem")["draw"].apply(list))
    assert rollouts["selected"].sum() == 2
    assert rollouts.loc[~rollouts["selected"], "advantage"].isna().all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curriculum", "epochs"),
    [(ShuffledEpochs(), [0, 0, 1, 1, 2]), (Greso(floor=1.0), [0, 0, 0, 1, 1])],
)
def test_a_round_knows_the_epoch_in_which_it_begins(curriculum, epochs):
    """Twelve problems, five a round. Shuffled epochs skip what is left, and GRESO goes on."""
    seen = []

    class Watching(Uniform):
        def allocate(self, problems, context):
            seen.append(context.epoch)
            yield from super().allocate(problems, context)

    method = wb.Method("watching", allocator=Watching(2), curriculum=curriculum)
    lab = small_lab(pool=12)
    go(wb.Run(lab, method, problems_per_round=5, evaluate_every=0), 5)
    assert seen == epochs


def test_a_slot_that_counts_in_a_public_attribute_is_no_other_run(lab, tmp_path):
    class Counting(Slot):
        def __init__(self):
            self.asked = 0

        def allocate(self, problems, context):
            self.asked += 1
            yield np.full(len(problems), 2)

    method = wb.Method("counting", allocator=Counting())
    run = wb.Run(lab, method, out=tmp_path, evaluate_every=0, problems_per_round=2)
    go(run, 1)
    assert [row["round"] for row in go(run, 2)] == [2]
    assert run.method.allocator.asked == 2
    assert method.allocator.asked == 0, "the run has a clone"


@pytest.mark.slow
def test_a_policy_of_ones_own_gives_a_log_probability_for_each_token(lab):
    def make_policy():
        policy = lab.policy()
        sampled = policy.generate

        def generate(*arguments):
            table = sampled(*arguments)
            whole = [[values.sum()] for values in table.old_logprobs]
            return table.assign(old_logprobs=Ragged.of(whole, np.float32))

        policy.generate = generate
        return policy

    few = {"problems_per_round": 2, "evaluate_every": 0}
    run = wb.Run(replace(lab, make_policy=make_policy), wb.methods.grpo(n=4), **few)
    with pytest.raises(ValueError, match="old_logprobs"):
        next(run.rounds(1))


def test_mini_batches_are_steps(lab):
    method = wb.methods.grpo(n=4)
    run = wb.Run(lab, method, mini_batches=2, problems_per_round=4, evaluate_every=0)
    assert go(run, 1)[0]["steps"] == 2


def test_kl_and_entropy_terms_run(lab):
    method = wb.methods.grpo(n=4, objective=wb.objectives.Objective(kl=0.05, entropy=0.01))
    rows = go(wb.Run(lab, method, problems_per_round=4, evaluate_every=0), 2)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-5)
    assert rows[1]["kl"] >= 0
    assert rows[0]["trained"] < 16 and rows[0]["tokens_trained"] > rows[0]["tokens_sampled"], (
        "every row is computed, and counted"
    )


@pytest.fixture(scope="module")
def smallest_lab():
    return wb.labs.tiny(base="late", pool=9, held_out=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_and_resumes_exactly_from_its_manifest(name, smallest_lab, tmp_path):
    method = small(name)
    assert method.name == name
    options = {"problems_per_round": 3, "evaluate_every": 0, "checkpoint_every": 1}
    whole = wb.Run(smallest_lab, method, out=tmp_path / "whole", **options)
    go(whole, 2)
    # What another process would find if this one ended here.
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    go(whole, 3)
    resumed = wb.Run.resume(tmp_path / "parts")
    assert repr(resumed.method) == repr(method)
    assert len(go(resumed, 3)) == 1
    same_record(whole.record, wb.load(tmp_path / "parts"))
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    rounds = whole.record.rounds
    assert rounds["rollouts"].min() > 0
    assert rounds["steps"].sum() > 0


@pytest.mark.parametrize(
    "options",
    [
        {"problems_per_round": 0},
        {"problems_per_round": 33},
        {"mini_batches": -1},
        {"mini_batches": 33},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"evaluate_every": -1},
        {"checkpoint_every": 0},
        {"seed": -1},
        {"seed": 1.5},
        {"out": 3},
    ],
    ids=repr,
)
def test_wrong_arguments_raise_before_a_model_is_loaded(lab, options):
    with pytest.raises(ValueError, match="".join(options)):
        wb.Run(lab, wb.methods.grpo(), **options)


def test_more_bad_input(lab, tmp_path):
    with pytest.raises(ValueError, match="n=1"):
        Uniform(1)
    with pytest.raises(ValueError, match="n=-1"):
        wb.Run(lab, wb.methods.grpo()).rounds(-1)
    with pytest.raises(OSError, match="no record here"):
        wb.load(tmp_path)


def test_a_temporary_record_goes_with_its_run(lab):
    run = wb.Run(lab, wb.methods.grpo(2), problems_per_round=2, evaluate_every=0)
    go(run, 1)
    path = run.path
    assert len(wb.load(path).rounds) == 1
    del run
    gc.collect()
    assert not path.exists()


def test_a_metric_never_takes_the_place_of_a_column_of_the_record():
    class Silly(wb.selectors.All):
        def metrics(self):
            return {"reward": 42.0}

    lab = wb.labs.tiny(pool=4, held_out=0)
    run = wb.Run(lab, wb.methods.grpo(2).but(selector=Silly()), problems_per_round=2)
    with pytest.raises(ValueError, match="metrics: the record has a column 'reward' already"):
        go(run, 1)
