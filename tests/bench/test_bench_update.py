"""One update of a real round of 32 x 8 against the plain computation.

The plain one pads all rows in one batch and takes the logits of every position. The gradients are
the same to 1e-5: `tests/test_grpo.py`.
"""

import copy

import numpy as np
import pytest
import torch

from tests.bench import limits, ratios
from workbench.grpo import grpo_step
from workbench.objectives import policy_loss
from workbench.rules.advantages import group_normalized

REPEATS = 7


def scored(lab, policy, seed):
    """A round of 32 problems x 8 rollouts and their advantages (256,)."""
    problems = lab.problems.draw(32, 0, seed)[0]
    rollouts = policy.generate(problems, [8] * 32, lab.sampling, seed)
    scores = lab.verifier.score(list(rollouts.text), list(rollouts.answer))
    return rollouts, group_normalized(scores.reward, rollouts.problem)


def plain_step(policy, optimizer, rollouts, advantages):
    """The same step as it is written down: every row, padded to the longest, all logits."""
    optimizer.zero_grad()
    ids, mask = full_rows(rollouts)
    logits = policy.model(input_ids=ids).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[:, :, 0]
    old_logprobs = torch.zeros(mask.shape).masked_scatter(
        mask, torch.as_tensor(rollouts.old_logprobs.values)
    )
    of_rows = torch.as_tensor(advantages, dtype=torch.float32)
    loss = policy_loss(logprobs, old_logprobs, of_rows, mask, loss_aggregation="token")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()


def full_rows(rollouts):
    """Prompt and response of each row as padded ids (R, T), and a mask (R, T - 1).

    The mask is True where the next token is one of the response.
    """
    prompts = rollouts.prompt.lengths
    ends = prompts + rollouts.lengths
    place = np.arange(ends.max())
    ids = np.zeros((len(rollouts), len(place)), dtype=np.int64)
    ids[place < prompts[:, None]] = rollouts.prompt.values
    response = (place >= prompts[:, None]) & (place < ends[:, None])
    ids[response] = rollouts.response.values
    return torch.as_tensor(ids), torch.as_tensor(response[:, 1:])


@pytest.fixture(scope="module", params=limits.SIZES)
def material(request):
    lab = limits.lab(request.param, share_prefixes=False)
    policy = lab.policy()
    with lab.verifier:
        rounds = [scored(lab, policy, seed) for seed in range(REPEATS)]
    return request.param, policy, rounds


def stepper(step, policy, rounds):
    """A job that takes one step on the next of the rounds.

    It has a policy and an optimizer of its own.
    """
    policy = copy.deepcopy(policy)
    turn = iter([rounds[0], *rounds])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    return lambda: step(policy, optimizer, *next(turn))


def padded_step(policy, optimizer, rollouts, advantages):
    """Our step with padded rows, as models have it that cannot be packed."""
    policy.layout = "padded"
    grpo_step(policy, optimizer, rollouts, advantages, micro_tokens=2048)


def packed_step(policy, optimizer, rollouts, advantages):
    """Our step in the micro-batches of the tiny lab."""
    grpo_step(policy, optimizer, rollouts, advantages, micro_tokens=8192)


def sharing_step(policy, optimizer, rollouts, advantages):
    """The same, and what responses begin with alike is computed once."""
    policy.share_prefixes = True
    packed_step(policy, optimizer, rollouts, advantages)


STEPS = (packed_step, sharing_step, padded_step, plain_step)


def test_an_update(material):
    size, policy, rounds = material
    assert policy.layout == "packed"
    computed = [rollouts.take(advantages != 0) for rollouts, advantages in rounds]
    limit = limits.Limits(policy)
    turn = iter([computed[0], *computed])
    jobs = [stepper(step, policy, rounds) for step in STEPS]
    jobs.append(lambda: limit.update(limit.work(next(turn))))
    spent = ratios.turns(*jobs, repeats=REPEATS, clock=ratios.OF_THE_PROCESS)
    ours, sharing, padded, plain, least = (np.array(seconds) for seconds in spent)
    name = f"update of 32 x 8, {size}"
    median = ratios.note(
        f"{name}: ours / plain (all rows, one batch, full logits)", ours / plain, "<= 0.5"
    )
    ratios.note(f"{name}: packed rows / padded rows", ours / padded, "<= 0.9")
    ratios.note(f"{name}: prefixes shared / each response alone", sharing / ours, "<= 0.8")
    ratios.note(f"{name}: x of the limit", ours / least)
    shares = [
        (part.lengths.sum() + limits.prompt_tokens(part)) / full_rows(rollouts)[0].numel()
        for part, (rollouts, _) in zip(computed, rounds)
    ]
    ratios.note(f"{name}: tokens computed / positions of the plain batch", shares)
    assert median < 1
