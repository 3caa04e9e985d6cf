"""A round's row in the record: one dict of numbers from the round's table of rollouts."""

import numpy as np

from workbench.analysis.metrics import effective_gradient_ratio, flops, zero_gradient_ratios
from workbench.verifiers import STATUSES


def round_row(number, rollouts, steps, parameters, learning_rate):
    """Ratios, counts, tokens and FLOPs of round `number`, name to number.

    rollouts: the table after `grpo.marked`, old responses included; steps: (rows, `StepStats`) of each update;
    parameters: weights that a forward pass multiplies with.
    """
    new = rollouts.round == number
    fresh = rollouts.take(new)
    positive, negative = zero_gradient_ratios(fresh.correct, fresh.problem)
    used, present = rollouts.take(rollouts["selected"]), rollouts.take(new | rollouts["selected"])
    return {
        "round": number,
        "problems": len(fresh.groups()[0]),
        "rollouts": len(fresh),
        "selected": len(used),
        "trained": int(rollouts["trained"].sum()),
        "reward": float(fresh.reward.mean()),
        "correct": float(fresh.correct.mean()),
        "effective_gradient_ratio": effective_gradient_ratio(used["advantage"] * used["gradient"]),
        "all_positive": positive,
        "all_negative": negative,
        "unsolved": zero_gradient_ratios(present.correct, present.problem)[1],
        **_steps(steps),
        **_cost(fresh, rollouts.take(np.isfinite(rollouts["drift"])), parameters),
        "entropy": float(fresh.entropy.mean()),
        "length": float(fresh.lengths.mean()),
        "truncated": float(fresh.truncated.mean()),
        "learning_rate": learning_rate,
        **{f"status_{name}": int(np.sum(fresh.status == name)) for name in STATUSES},
    }


def _cost(fresh, trained, parameters):
    """Tokens and FLOPs of the fresh rollouts and of those that an update computed."""
    _, first = np.unique(fresh.problem, return_index=True)
    sampled = int(fresh.lengths.sum() + fresh.prompt.lengths[first].sum())
    trained_tokens = int(trained.lengths.sum() + trained.prompt.lengths.sum())
    generating, training = (
        flops(parameters, sampled_tokens=sampled),
        flops(parameters, trained_tokens=trained_tokens),
    )
    return {
        "tokens_sampled": sampled,
        "tokens_trained": trained_tokens,
        "flops_generate": generating,
        "flops_update": training,
        "flops": generating + training,
    }


def _steps(steps):
    """Means over the round's optimizer steps; NaN without one."""
    stats = [s for _, s in steps]
    clip = np.concatenate([s.clip_ratio for s in stats]) if stats else np.empty(0)
    means = {
        name: float(np.mean([getattr(s, name) for s in stats])) if stats else float("nan")
        for name in ("loss", "gradient_norm", "kl")
    }
    return {
        "steps": len(stats),
        **means,
        "clip_ratio": float(np.nanmean(clip)) if np.isfinite(clip).any() else 0.0,
    }
