"""Seconds of a step in TRL's trainer: methods through ours against TRL alone, in one run.

All train on the tiny model at a learning rate of 0, so that every step samples what the same step
of the others samples. A step is that of 8 problems. What is wanted: GRPO through our trainer costs
at most 5 % more than TRL alone, and PODS, which samples 32 rollouts of a problem and trains on 8,
less than TRL's own trainer with 32 generations.
"""

import zlib

import pytest

pytest.importorskip("trl", reason="the comparison needs TRL: pip install -e '.[trl]'")

import time

import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback

from tests.bench import ratios
from workbench import methods
from workbench.labs import shipped
from workbench.problems import arithmetic
from workbench.trl import GRPOTrainer
from workbench.verifiers import Math

PROBLEMS, STEPS, REPEATS = 8, 4, 2
MODEL = str(shipped("models/tiny"))
VERIFIER = Math(boxed=True)
transformers.utils.logging.disable_progress_bar()


def right(completions, answer, **_):
    return VERIFIER.score(list(completions), list(answer)).reward.tolist()


def different(completions, **_):
    """Hardly two rollouts have the same reward, so that every row is trained on."""
    return [zlib.crc32(text.encode()) % 1009 / 1009 for text in completions]


class Clock(TrainerCallback):
    """Seconds of each step, of this process alone.

    Everything here runs on one thread, so on an idle machine they are those of the clock on the
    wall, and on a busy one other programs do not count.
    """

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *_args, **_options):
        self.start = time.process_time()

    def on_step_end(self, *_args, **_options):
        self.seconds.append(time.process_time() - self.start)


def step_seconds(out, reward, generations, method=None):
    """Seconds of the steps after the first one, together."""
    args = trl.GRPOConfig(
        str(out),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=STEPS,
        learning_rate=0.0,
        num_generations=generations,
        per_device_train_batch_size=PROBLEMS * generations,
        max_completion_length=64,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    problems = arithmetic(PROBLEMS * STEPS, seed=0)
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in problems])
    clock = Clock()
    options = {"args": args, "train_dataset": data, "callbacks": [clock]}
    if method is None:
        trainer = trl.GRPOTrainer(MODEL, reward, **options)
    else:
        trainer = GRPOTrainer(MODEL, reward, **options, method=method)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return sum(clock.seconds[1:])


def measured(*jobs):
    """Seconds of each job, in turns: a list for each."""
    spent = [[job() for job in jobs] for _ in range(REPEATS + 1)][1:]
    return [list(column) for column in zip(*spent)]


def test_grpo_through_our_trainer_against_trl_alone(benchmark, tmp_path):
    jobs = [
        lambda: step_seconds(tmp_path, different, 8, methods.grpo(8)),
        lambda: step_seconds(tmp_path, different, 8),
        lambda: step_seconds(tmp_path, right, 8, methods.grpo(8)),
        lambda: step_seconds(tmp_path, right, 8),
    ]
    ours, theirs, ours_right, theirs_right = benchmark.pedantic(measured, args=jobs, rounds=1)
    same_work = sorted(a / b for a, b in zip(ours, theirs))
    usual = sorted(a / b for a, b in zip(ours_right, theirs_right))
    overhead = ratios.note("step in TRL: grpo(8) through ours / TRL alone", same_work, "<= 1.05")
    ratios.note("  the same with rewards of 0 and 1: rows of advantage 0 are left out", usual)
    benchmark.extra_info |= {"ratio": overhead}
    assert overhead < 1.15  # a busy machine


def test_pods_against_trl_with_as_many_sampled_and_as_many_trained_on(benchmark, tmp_path):
    jobs = [
        lambda: step_seconds(tmp_path, right, 8, methods.pods(32, 8)),
        lambda: step_seconds(tmp_path, right, 32),
        lambda: step_seconds(tmp_path, right, 8),
    ]
    pods, with_32, with_8 = benchmark.pedantic(measured, args=jobs, rounds=1)
    against_32 = sorted(a / b for a, b in zip(pods, with_32))
    against_8 = sorted(a / b for a, b in zip(pods, with_8))
    saved = ratios.note("step in TRL: pods(32, 8) / TRL with 32 generations", against_32, "<= 1")
    ratios.note("step in TRL: pods(32, 8) / TRL with 8 generations", against_8)
    ratios.note("step in TRL: pods(32, 8)", [s / (STEPS - 1) for s in pods], unit="s")
    ratios.note("step in TRL: 32 generations", [s / (STEPS - 1) for s in with_32], unit="s")
    ratios.note("step in TRL: 8 generations", [s / (STEPS - 1) for s in with_8], unit="s")
    benchmark.extra_info |= {"ratio": saved}
    assert saved < 1.15
