"""PODS and dynamic sampling in TRL, beside plain TRL: the shipped tiny model learns arithmetic.

It takes a minute on a CPU.

    python examples/trl_pods.py
    torchrun --nproc-per-node 2 examples/trl_pods.py    # two processes, each with half of a round
    accelerate launch --config_file examples/deepspeed_zero2.yaml examples/trl_pods.py    # 8 GPUs
    python examples/trl_pods.py --model Qwen/Qwen2.5-0.5B-Instruct --data mine.csv --tokens 512

A file of one's own has a column `prompt` and a column `answer` (.csv, .jsonl, .json or .parquet). A
model with a chat template is asked in its form, and answers in a box, which `reward` reads.

All three train on 32 rollouts a step, eight of each of four problems. PODS samples 32 of each and
keeps the eight of largest variance. Dynamic sampling draws more problems until four groups are
mixed.
"""

import argparse
import os

# A model this small is slower with more threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from workbench import methods
from workbench.analysis.intervals import mean_interval
from workbench.labs import shipped
from workbench.problems import arithmetic, from_file
from workbench.trl import GRPOTrainer
from workbench.verifiers import Math

ASKED = "Put the final answer into \\boxed{}."
VERIFIER = Math(boxed=True)
PROBLEMS = 4  # of a step
ROLLOUTS = 32  # of a step, eight of each problem
METHODS = {
    "plain": None,
    "pods": methods.pods(32, 8),
    "dynamic": methods.dapo(8, max_draws=8, overlong=0),
}


def reward(completions, answer, **_):
    """1 where the boxed answer is equivalent to the gold one, else 0."""
    # Of a conversation, TRL hands over a list of messages.
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return VERIFIER.score(texts, list(answer)).reward.tolist()


def data_set(problems, model):
    """The problems as rows for TRL, as messages where the model has a chat template."""
    chats = AutoTokenizer.from_pretrained(model).chat_template is not None
    rows = []
    for problem in problems:
        message = {"role": "user", "content": f"{problem.prompt}\n{ASKED}"}
        rows.append({"prompt": [message] if chats else problem.prompt, "answer": problem.answer})
    return Dataset.from_list(rows)


def train(name, data, seed, asked):
    """Rollouts sampled and effective-gradient ratio of each step, (steps,) both."""
    gpu = torch.cuda.is_available()
    processes = int(os.environ.get("WORLD_SIZE", 1))
    args = GRPOConfig(
        os.path.join(asked.out, f"{name}-{seed}"),
        max_steps=asked.steps,
        seed=seed,
        learning_rate=asked.learning_rate,
        lr_scheduler_type="constant",
        generation_batch_size=ROLLOUTS,
        per_device_train_batch_size=ROLLOUTS // processes,
        max_completion_length=asked.tokens,
        use_cpu=not gpu,
        bf16=gpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(asked.model, reward, args=args, train_dataset=data, method=METHODS[name])
    trainer.train()
    log = [row for row in trainer.state.log_history if "reward" in row]
    if METHODS[name] is None:
        return np.full(len(log), ROLLOUTS), np.array(
            [1 - row["frac_reward_zero_std"] for row in log]
        )
    rollouts = np.array([row["workbench/rollouts"] for row in log])
    # A step whose problems all were too easy or too hard has selected nothing, and logs no ratio.
    return rollouts, np.array([row.get("workbench/effective_gradient_ratio", 0) for row in log])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(shipped("models/tiny")), help="a name or a path")
    parser.add_argument("--data", help="a file with the columns prompt and answer")
    parser.add_argument("--tokens", type=int, default=64, help="the longest response")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="1e-6 for large models")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each, for an interval")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", default="runs/trl")
    asked = parser.parse_args()
    if min(asked.steps, asked.seeds, asked.tokens) < 1:
        parser.error("--steps, --seeds and --tokens have to be 1 or more")
    if not 0 < asked.learning_rate < float("inf"):
        parser.error("--learning-rate has to be a number above 0")
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if ROLLOUTS % processes:
        parser.error(
            f"{processes} processes cannot share the {ROLLOUTS} rollouts of a step; "
            f"start a number of them that divides {ROLLOUTS}"
        )
    if asked.data and not os.path.isfile(asked.data):
        parser.error(f"--data: there is no file {asked.data}")
    try:
        problems = from_file(asked.data, verifier=VERIFIER) if asked.data else arithmetic(512)
    except ValueError as error:
        parser.error(f"--data: {error}")
    if len(problems) < PROBLEMS:
        parser.error(
            f"--data: a step takes {PROBLEMS} problems, and {asked.data} has {len(problems)}"
        )
    data = data_set(problems, asked.model)
    for name in asked.methods:
        runs = [train(name, data, seed, asked) for seed in range(asked.seeds)]
        rollouts = np.mean([counts for counts, _ in runs])
        mean, width = mean_interval(np.array([ratios.mean() for _, ratios in runs]))
        interval = f" +- {width:.3f}" if asked.seeds > 1 else ""  # one run has none
        if os.environ.get("RANK", "0") == "0":
            print(
                f"{name}: {rollouts:.0f} rollouts a step, "
                f"effective-gradient ratio {mean:.3f}{interval}"
            )


if __name__ == "__main__":
    main()
