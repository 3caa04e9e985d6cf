"""Seconds of a step in TRL's trainer: methods through ours against TRL alone, in one run.

What is wanted: GRPO through our trainer costs at most 5 % more than TRL alone, and PODS, which
samples 32 rollouts of a problem and trains on 8, less than TRL's own trainer with 32 generations.

The trainers that are compared take their steps in turns, so whatever else the machine does falls on
all of them alike, and what counts is the processor's time and not that of the clock on the wall.
All train at a learning rate of 0 and sample from the same seed at every step, so step k of each of
them samples the same responses wherever they sample equally many. A step is that of 8 problems.
"""

import zlib

import pytest

pytest.importorskip("trl", reason="the comparison needs TRL: pip install -e '.[trl]'")

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback

from tests.bench import ratios
from workbench import methods, problems
from workbench.labs import shipped
from workbench.trl import GRPOTrainer
from workbench.verifiers import Math

PROBLEMS = 8
WARMUP = 2  # steps at the start that are not counted
MODELS = {"clean": ("tiny", problems.arithmetic), "default": ("early-small", problems.chains)}
VERIFIER = Math(boxed=True)
transformers.utils.logging.disable_progress_bar()


def right(completions, answer, **_):
    return VERIFIER.score(list(completions), list(answer)).reward.tolist()


def different(completions, **_):
    """Hardly two rollouts have the same reward, so that every row is trained on."""
    return [zlib.crc32(text.encode()) % 1009 / 1009 for text in completions]


class Turns:
    """A baton that goes round: of n threads only the one that has it works."""

    def __init__(self, n):
        self.batons = [threading.Semaphore(int(i == 0)) for i in range(n)]

    def take(self, i):
        if not self.batons[i].acquire(timeout=600):
            raise TimeoutError("the baton did not come back: another trainer has failed")

    def pass_on(self, i):
        self.batons[(i + 1) % len(self.batons)].release()


class Clock(TrainerCallback):
    """Processor seconds of each step of a trainer, everything from one step's start to the next.

    They are those of the trainer's own thread, which does all the work where torch has one thread,
    so waiting for the baton does not count.
    """

    def __init__(self, turns, place):
        self.turns = turns
        self.place = place
        self.start = None
        self.seconds = []

    def on_step_begin(self, args, state, control, **_):
        if self.start is not None:
            self.seconds.append(time.thread_time() - self.start)
            self.turns.pass_on(self.place)
        self.turns.take(self.place)
        torch.manual_seed(state.global_step)
        self.start = time.thread_time()

    def on_train_end(self, args, state, control, **_):
        self.turns.pass_on(self.place)


def make_trainer(out, steps, clock, model, reward, generations, method=None):
    """A trainer of so many steps, each of 8 problems; ours where there is a method."""
    args = trl.GRPOConfig(
        str(out),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_steps=WARMUP + steps + 1,  # a step ends for the clock where the next one begins
        learning_rate=0.0,
        num_generations=generations,
        per_device_train_batch_size=PROBLEMS * generations,
        max_completion_length=64,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    folder, make_problems = MODELS[model]
    pool = make_problems(PROBLEMS * args.max_steps, seed=0)
    data = Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in pool])
    options = {"args": args, "train_dataset": data, "callbacks": [clock]}
    path = str(shipped(f"models/{folder}"))
    if method is None:
        trainer = trl.GRPOTrainer(path, reward, **options)
    else:
        trainer = GRPOTrainer(path, reward, **options, method=method)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def step_seconds(out, steps, *arms):
    """Seconds of each step of trainers that take turns: a list of so many numbers for each.

    An arm is the arguments of `make_trainer` after the clock.
    """
    turns = Turns(len(arms))
    clocks = [Clock(turns, i) for i in range(len(arms))]
    trainers = [make_trainer(out, steps, clock, *arm) for clock, arm in zip(clocks, arms)]
    with ThreadPoolExecutor(len(arms)) as threads:
        for future in [threads.submit(trainer.train) for trainer in trainers]:
            future.result()
    return [clock.seconds[WARMUP:] for clock in clocks]


def divided(ours, theirs):
    """Ratios of the seconds of each step, sorted."""
    return sorted(a / b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_grpo_through_our_trainer_against_trl_alone(model, benchmark, tmp_path):
    arms = [(model, different, 8, methods.grpo(8)), (model, different, 8)]
    ours, theirs = benchmark.pedantic(step_seconds, args=(tmp_path, 24, *arms), rounds=1)
    name = f"step in TRL on the {model} model: grpo(8) through ours / TRL alone"
    overhead = ratios.note(name, divided(ours, theirs), "<= 1.05")
    benchmark.extra_info |= {"ratio": overhead}
    assert overhead < 1.1


def test_rows_of_advantage_0_are_not_computed(benchmark, tmp_path):
    arms = [("clean", right, 8, methods.grpo(8)), ("clean", right, 8)]
    ours, theirs = benchmark.pedantic(step_seconds, args=(tmp_path, 6, *arms), rounds=1)
    name = "  the same with rewards of 0 and 1: rows of advantage 0 are left out"
    saved = ratios.note(name, divided(ours, theirs), "<= 1")
    benchmark.extra_info |= {"ratio": saved}
    assert saved < 1.05


def test_pods_against_trl_with_as_many_sampled_and_as_many_trained_on(benchmark, tmp_path):
    arms = [
        ("clean", right, 8, methods.pods(32, 8)),
        ("clean", right, 32),
        ("clean", right, 8),
    ]
    pods, with_32, with_8 = benchmark.pedantic(step_seconds, args=(tmp_path, 5, *arms), rounds=1)
    against_32 = divided(pods, with_32)
    saved = ratios.note("step in TRL: pods(32, 8) / TRL with 32 generations", against_32, "<= 1")
    ratios.note("step in TRL: pods(32, 8) / TRL with 8 generations", divided(pods, with_8))
    ratios.note("step in TRL: pods(32, 8)", pods, unit="s")
    ratios.note("step in TRL: 32 generations", with_32, unit="s")
    ratios.note("step in TRL: 8 generations", with_8, unit="s")
    benchmark.extra_info |= {"ratio": saved}
    assert saved < 1.05
