"""A round's row in the record: one dict of numbers from the round's table of rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.grpo import StepStats
from workbench.rollouts import Rollouts
from workbench.utils.groups import keys
from workbench.utils.names import STOPPED
from workbench.verifiers import STATUSES

# FLOPs for each parameter and token: 2 for a forward pass, 6 for forward and backward (AERO,
# equation 23).
FORWARD = 2
TRAINING = 6


def effective_gradient_ratio(advantages: Any) -> float:
    """Share of rollouts whose advantage is not zero.

    Parameters
    ----------
    advantages : (R,) floats

    Returns
    -------
    float
        NaN without any rollout.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equation 4.

    Examples
    --------
    >>> effective_gradient_ratio([0.0, 1.0, -1.0, 0.0])
    0.5
    """
    advantages = np.asarray(advantages, dtype=np.float64)
    return float(np.mean(advantages != 0)) if advantages.size else float("nan")


def success_rates(correct: Any, groups: Any) -> np.ndarray:
    """Share of correct rollouts in each group.

    Parameters
    ----------
    correct : (R,) bool
    groups : (R,) keys
        In any order.

    Returns
    -------
    (G,) float64
        In the sorted order of the groups' keys.

    Examples
    --------
    >>> success_rates([True, False, True], ["b", "b", "a"]).tolist()
    [1.0, 0.5]
    """
    _, inverse, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return np.bincount(inverse, np.asarray(correct, dtype=np.float64), len(sizes)) / sizes


def zero_gradient_ratios(correct: Any, groups: Any) -> tuple[float, float]:
    """Shares of groups whose rollouts are all correct, and all wrong.

    Neither kind has a gradient when advantages are taken within a group.

    Parameters
    ----------
    correct : (R,) bool
    groups : (R,) keys

    Returns
    -------
    all_positive, all_negative : float
        NaN without any group.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), section 3.

    Examples
    --------
    >>> zero_gradient_ratios([True, True, False, True], [0, 0, 1, 2])
    (0.6666666666666666, 0.3333333333333333)
    """
    rates = success_rates(correct, groups)
    if not len(rates):
        return float("nan"), float("nan")
    return float(np.mean(rates == 1)), float(np.mean(rates == 0))


def flops(parameters: int, *, sampled_tokens: int = 0, trained_tokens: int = 0) -> float:
    """Floating-point operations: 2 x parameters x sampled tokens + 6 x parameters x trained tokens.

    Parameters
    ----------
    parameters : int
        Weights that a forward pass multiplies with.
    sampled_tokens, trained_tokens : int
        Prompt tokens count with the tokens that they are processed with.

    References
    ----------
    AERO (arXiv 2602.14338), equation 23.

    Examples
    --------
    >>> flops(1000, sampled_tokens=10, trained_tokens=5)
    50000.0
    """
    return float(parameters) * (FORWARD * sampled_tokens + TRAINING * trained_tokens)


def round_stats(
    number: int,
    rollouts: Rollouts,
    steps: Sequence[tuple[np.ndarray, StepStats]],
    parameters: int,
    learning_rate: float,
) -> dict[str, Any]:
    """Ratios, counts, tokens and FLOPs of round `number`, name to number.

    Parameters
    ----------
    number : int
    rollouts : Rollouts
        The table after `grpo.mark`, old responses included.
    steps : list of (rows, StepStats)
        Of each optimizer step.
    parameters : int
        Weights that a forward pass multiplies with.
    learning_rate : float
    """
    # Four views of the table: the round's own rollouts; what was selected, old responses included;
    # both together; and what an update computed, which alone has a `logprob_diff`.
    is_new = rollouts.round == number
    fresh = rollouts.take(is_new)
    used = rollouts.take(rollouts["selected"])
    present = rollouts.take(is_new | rollouts["selected"])
    computed = rollouts.take(np.isfinite(rollouts["logprob_diff"]))
    selected_tokens = int(used.lengths.sum() + used.prompt.lengths.sum())
    problems, _ = fresh.problems()
    # Of the new rollouts first, and then with the old responses that joined: replay may give a
    # problem that nothing solved in this round a correct response.
    all_positive, all_negative = zero_gradient_ratios(fresh.correct, fresh.problem)
    _, unsolved = zero_gradient_ratios(present.correct, present.problem)
    correct = float(fresh.correct.mean())
    if not present.judged:
        # Nobody has said what is correct, and the shares of what is not known are not 0.
        all_positive = all_negative = unsolved = correct = float("nan")
    return {
        "round": number,
        "problems": len(problems),
        "rollouts": len(fresh),
        "selected": len(used),
        "trained": int(rollouts["trained"].sum()),
        "reward": float(fresh.reward.mean()),
        "correct": correct,
        # A row without a gradient, as by its weight, counts as one of advantage 0.
        "effective_gradient_ratio": effective_gradient_ratio(used["trained"]),
        "all_positive": all_positive,
        "all_negative": all_negative,
        "unsolved": unsolved,
        **_step_means(steps),
        **_cost(fresh, computed, parameters),
        **_course_stats(fresh),
        "tokens_selected": selected_tokens,
        "entropy": float(fresh.entropy.mean()),
        "length": float(fresh.lengths.mean()),
        "truncated": float(fresh.truncated.mean()),
        "learning_rate": learning_rate,
        **{f"status_{name}": int(np.sum(fresh.status == name)) for name in STATUSES},
    }


def sampler_stats(
    steps: Sequence[tuple[np.ndarray, StepStats]], rescored_tokens: int, parameters: int
) -> dict[str, float]:
    """What it means that another program than the trainer sampled, name to number.

    Parameters
    ----------
    steps : list of (rows, StepStats)
        Of each optimizer step.
    rescored_tokens : int
        Tokens whose log-probabilities the trainer has computed besides its updates.
    parameters : int
        Weights that a forward pass multiplies with.

    Returns
    -------
    dict
        sampler_gap: mean over the computed rollouts of the mean over tokens of |trainer's
        log-probability - sampler's|, in nats. sampler_above: mean share of tokens whose importance
        weight is above the cap. Both are NaN without a step, and where the two are not of the same
        distribution. tokens_rescored and flops_rescore.
    """
    return {
        "sampler_gap": _finite_mean([stats.sampler_gap for _, stats in steps]),
        "sampler_above": _finite_mean([stats.sampler_above for _, stats in steps]),
        "tokens_rescored": rescored_tokens,
        "flops_rescore": flops(parameters, sampled_tokens=rescored_tokens),
    }


def _finite_mean(parts: Sequence[np.ndarray | None]) -> float:
    """The mean over what is finite in all parts together; NaN without anything."""
    values = np.concatenate([part for part in parts if part is not None] or [np.empty(0)])
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def _cost(fresh: Rollouts, computed: Rollouts, parameters: int) -> dict[str, float]:
    """Tokens and FLOPs of the new rollouts, and of those that an update computed.

    A prompt is computed once for all its rollouts of one request, and again in the next request.
    """
    # One key for each problem and request. The sampler computes a prompt once for each key. The
    # trainer is counted as if it computed one for every row.
    _, first_of_request = np.unique(keys(fresh.problem, fresh.stage), return_index=True)
    # With a course, a prompt may end with a prefix, and a response may begin with one. These were
    # read and not sampled. What was sampled beyond the end of a response is not in the table.
    prefix, kept, read, lost = _course_columns(fresh)
    prompt_tokens = int((fresh.prompt.lengths - prefix)[first_of_request].sum())
    sampled = int((fresh.lengths - kept + lost).sum()) + prompt_tokens
    trained = int(computed.lengths.sum() + computed.prompt.lengths.sum())
    generating = flops(parameters, sampled_tokens=sampled + int(read.sum()))
    training = flops(parameters, trained_tokens=trained)
    return {
        "tokens_sampled": sampled,
        "tokens_trained": trained,
        "flops_generate": generating,
        "flops_update": training,
        "flops": generating + training,
    }


def _course_columns(fresh: Rollouts) -> list[np.ndarray]:
    """The columns prefix, kept, read and lost, see `rules.courses`: (R,) each, 0 without them."""
    nothing = np.zeros(len(fresh), dtype=np.int64)
    names = ("prefix", "kept", "read", "lost")
    return [fresh[name] if name in fresh else nothing for name in names]


def _course_stats(fresh: Rollouts) -> dict[str, float]:
    """What a course did with the new rollouts; nothing where there is none.

    tokens_read: tokens of prefixes and drafts that the sampler has read, which `tokens_sampled`
    leaves out and FLOPs count. tokens_stopped: tokens that stopped rollouts have sampled, and those
    that were sampled beyond the end of others; they are part of `tokens_sampled`.
    """
    if "read" not in fresh:
        return {}
    _, kept, read, lost = _course_columns(fresh)
    stopped = fresh.status == STOPPED
    return {
        "tokens_read": int(read.sum()),
        "tokens_stopped": int((fresh.lengths - kept)[stopped].sum() + lost.sum()),
        f"status_{STOPPED}": int(stopped.sum()),
    }


def _step_means(steps: Sequence[tuple[np.ndarray, StepStats]]) -> dict[str, float]:
    """Means over the round's optimizer steps; NaN without one."""
    stats = [each for _, each in steps]
    # Steps differ in size, so the mean is taken over rollouts. NaN marks those that a step did not
    # compute, and a round without any computed rollout clips nothing.
    clip = np.concatenate([each.clip_ratio for each in stats]) if stats else np.empty(0)
    clip_ratio = float(np.nanmean(clip)) if np.isfinite(clip).any() else 0.0
    return {
        "steps": len(stats),
        "loss": _mean([each.loss for each in stats]),
        "gradient_norm": _mean([each.gradient_norm for each in stats]),
        "kl": _mean([each.kl for each in stats]),
        "clip_ratio": clip_ratio,
    }


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN where there are no values."""
    return float(np.mean(values)) if values else float("nan")
