"""The whole loop on one page: reinforcement learning with verifiable rewards, by primitives alone.

Two ways to spend the same number of sampled responses ("rollouts") are trained from the same
weights on the same problems:

    GRPO      samples 16 responses to each of 32 problems and trains on all of them.
    frugal    asks which rollouts are worth generating: it splits the same 512 rollouts by how often
              each problem was solved last time (Knapsack RL, arXiv 2509.25849). Then it asks which
              are worth training on: of each problem it keeps the 8 rollouts whose rewards differ
              most (PODS, arXiv 2504.13818).

Run it with

    python -m examples.minimal

It takes about a minute on one core of a CPU and draws `runs/minimal.svg`. Nothing is hidden in a
trainer: to try an idea of your own, change `allocate` or `select` and run it again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import workbench as wb

PROBLEMS_A_ROUND = 32
ROLLOUTS_A_PROBLEM = 16
TRAINED_A_PROBLEM = 8
LEARNING_RATE = 1e-3  # the same for both ways; at a rate tuned for each the distance may differ


def allocate(arm: str, rates: np.ndarray) -> np.ndarray:
    """How many rollouts each problem gets, (P,) whole numbers.

    rates (P,): the share of right responses when a problem came last. NaN for one that is new; the
    knapsack gives it as many rollouts as GRPO does.
    """
    if arm == "GRPO":
        return np.full(len(rates), ROLLOUTS_A_PROBLEM)
    return wb.allocators.knapsack(rates, total=ROLLOUTS_A_PROBLEM * len(rates))


def select(arm: str, rewards: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """The rows to train on, among (R,) rollouts with these rewards for these problems."""
    if arm == "GRPO":
        return np.arange(len(rewards))
    return wb.selectors.max_variance(rewards, m=TRAINED_A_PROBLEM, groups=problems)


def train(arm: str, rounds: int, lab: wb.labs.Lab, seed: int) -> list[tuple[int, float]]:
    """Train for some rounds; returns (rollouts sampled so far, held-out accuracy) now and then."""
    # A tiny language model that comes with the package, and the optimizer of its weights.
    policy = lab.policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
    objective = wb.objectives.Objective()  # the clipped loss of GRPO
    rng = np.random.default_rng(seed)
    last_rate: dict[str, float] = {}
    sampled = 0
    curve = [(sampled, accuracy(policy, lab))]

    for number in range(1, rounds + 1):
        # Every arm draws the same problems in the same order.
        drawn = rng.choice(len(lab.problems), PROBLEMS_A_ROUND, replace=False)
        problems = [lab.problems[index] for index in drawn]

        # Which rollouts are worth generating?
        rates = np.array([last_rate.get(problem.id, np.nan) for problem in problems])
        counts = allocate(arm, rates)
        rollouts = policy.generate(problems, counts, lab.sampling, seed=seed * 10_000 + number)
        sampled += len(rollouts)

        # The verifier reads each response and compares its answer with the right one.
        rewards = lab.verifier.score(rollouts.text, rollouts.answer).reward
        for problem in problems:
            last_rate[problem.id] = float(rewards[rollouts.problem == problem.id].mean())

        # Which of them are worth training on? And how good is each, against its own group?
        kept = select(arm, rewards, rollouts.problem)
        advantages = wb.advantages.group_normalized(rewards[kept], rollouts.problem[kept])

        # One step of the optimizer on the clipped policy gradient.
        wb.grpo_step(policy, optimizer, rollouts.take(kept), advantages, objective)

        if number % 10 == 0 or number == rounds:
            curve.append((sampled, accuracy(policy, lab)))
            print(f"{arm:8} round {number:3}: {curve[-1][1]:.1%} of held-out answers right")
    return curve


def accuracy(policy: wb.policies.Policy, lab: wb.labs.Lab) -> float:
    """The share of right answers to the held-out problems, over 8 responses to each."""
    held_out = lab.held_out
    rollouts = policy.generate(held_out, [8] * len(held_out), lab.sampling, seed=1)
    return float(lab.verifier.score(rollouts.text, rollouts.answer).correct.mean())


def main() -> None:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/minimal.svg"))
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.seed < 0:
        parser.error("--rounds has to be 1 or more, and --seed 0 or more")

    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if arguments.out.suffix.lstrip(".").lower() not in formats or arguments.out.is_dir():
        parser.error(f"--out has to be a file that ends with one of .{', .'.join(sorted(formats))}")
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {arguments.out}: its folder cannot be made ({error.strerror})")

    lab = wb.labs.tiny(pool=256, held_out=200)
    for arm in ("GRPO", "frugal"):
        curve = train(arm, arguments.rounds, lab, arguments.seed)
        axes.plot(*zip(*curve), marker="o", label=arm)
    axes.set(xlabel="rollouts sampled", ylabel="held-out accuracy", ylim=(0, 1))
    axes.set_title(f"One seed, both at a learning rate of {LEARNING_RATE:g}")
    axes.legend()
    figure.savefig(arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
