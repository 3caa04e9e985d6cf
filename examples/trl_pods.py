"""PODS and dynamic sampling in TRL, beside plain TRL: the shipped tiny model learns arithmetic.

It takes a minute on a CPU.

    python examples/trl_pods.py
    torchrun --nproc-per-node 2 examples/trl_pods.py    # two processes, each with half of a round
    accelerate launch --config_file examples/deepspeed_zero2.yaml examples/trl_pods.py    # 8 GPUs

For a model and data of your own change `MODEL`, `DATA` and `reward`; the rest stays. All three
train on 32 rollouts a step, eight of each of four problems. PODS samples 32 of each and keeps the
eight of largest variance. Dynamic sampling draws more problems until four groups are mixed.
"""

import argparse
import os

# A model this small is slower with more threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig

from workbench import methods
from workbench.analysis.intervals import mean_interval
from workbench.labs import shipped
from workbench.problems import arithmetic
from workbench.trl import GRPOTrainer
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
    gpu = torch.cuda.is_available()
    processes = int(os.environ.get("WORLD_SIZE", 1))
    args = GRPOConfig(
        os.path.join(out, f"{name}-{seed}"),
        max_steps=steps,
        seed=seed,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        generation_batch_size=32,  # four problems, of each of which eight rollouts are trained on
        per_device_train_batch_size=32 // processes,
        max_completion_length=64,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_list(DATA)
    trainer = GRPOTrainer(MODEL, reward, args=args, train_dataset=data, method=METHODS[name])
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    if METHODS[name] is None:
        return np.full(len(log), 32), np.array([1 - row["frac_reward_zero_std"] for row in log])
    rollouts = np.array([row["workbench/rollouts"] for row in log])
    return rollouts, np.array([row["workbench/effective_gradient_ratio"] for row in log])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, for an interval")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", default="runs/trl")
    asked = parser.parse_args()
    for name in asked.methods:
        runs = [train(name, asked.steps, seed, asked.out) for seed in range(asked.seeds)]
        rollouts = np.mean([counts for counts, _ in runs])
        mean, width = mean_interval(np.array([ratios.mean() for _, ratios in runs]))
        if os.environ.get("RANK", "0") == "0":
            print(
                f"{name}: {rollouts:.0f} rollouts a step, "
                f"effective-gradient ratio {mean:.3f} +- {width:.3f}"
            )


if __name__ == "__main__":
    main()
