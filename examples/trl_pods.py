"""PODS and dynamic sampling in TRL, beside plain TRL: train the shipped tiny model on arithmetic, on a CPU in a minute.

    python examples/trl_pods.py
    torchrun --nproc-per-node 2 examples/trl_pods.py    # two processes, each with half of every round
    accelerate launch --config_file examples/deepspeed_zero2.yaml examples/trl_pods.py    # eight GPUs: a model of yours

For a model and data of your own change `MODEL`, `DATA` and `reward`; the rest stays. All three train on 32 rollouts a
step, eight of each of four problems. PODS samples 32 of each and keeps the eight of largest variance; dynamic sampling
draws more problems until four groups are mixed.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a model this small is slower with more threads

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig

from workbench import methods
from workbench.analysis.metrics import mean_interval
from workbench.labs import shipped
from workbench.problems import arithmetic
from workbench.trl import GRPOTrainer, arguments
from workbench.verifiers import Math

MODEL = str(shipped("models/tiny"))
DATA = [{"prompt": problem.prompt, "answer": problem.answer} for problem in arithmetic(512)]
VERIFIER = Math(boxed=True)
METHODS = {
    "plain": None,
    "pods": methods.pods(32, 8),
    "dynamic": methods.dapo(8, max_draws=8, overlong=0),
}


def reward(completions, answer, **_):
    """1 where the boxed answer is equivalent to the gold one, else 0."""
    return VERIFIER.score(list(completions), list(answer)).reward.tolist()


def train(name, steps, seed, out):
    """Rollouts sampled and effective-gradient ratio of each step, (steps,) both."""
    method, gpu = METHODS[name], torch.cuda.is_available()
    args = GRPOConfig(
        os.path.join(out, f"{name}-{seed}"), max_steps=steps, seed=seed, learning_rate=2e-4, lr_scheduler_type="constant",
        num_generations=8, generation_batch_size=32, max_completion_length=64,  # four problems, 32 rows a step
        per_device_train_batch_size=32 // int(os.environ.get("WORLD_SIZE", 1)), use_cpu=not gpu, bf16=gpu,
        gradient_checkpointing=False, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        **arguments(method or methods.grpo()),
    )  # fmt: skip
    trainer = GRPOTrainer(
        MODEL, reward, args=args, train_dataset=Dataset.from_list(DATA), method=method
    )
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    if method is None:
        return np.full(len(log), 32), np.array([1 - row["frac_reward_zero_std"] for row in log])
    return tuple(
        np.array([row[f"workbench/{key}"] for row in log])
        for key in ("rollouts", "effective_gradient_ratio")
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, for an interval")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", default="runs/trl")
    asked = parser.parse_args()
    for name in asked.methods:
        rollouts, ratio = np.mean(
            [train(name, asked.steps, seed, asked.out) for seed in range(asked.seeds)], axis=2
        ).T
        mean, width = mean_interval(ratio)
        if os.environ.get("RANK", "0") == "0":
            print(
                f"{name}: {rollouts.mean():.0f} rollouts a step, effective-gradient ratio {mean:.3f} +- {width:.3f}"
            )


if __name__ == "__main__":
    main()
