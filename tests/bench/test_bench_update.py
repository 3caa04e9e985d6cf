"""One update of a real round of 32 x 8 against the plain computation: all rows padded in one batch, full logits.

The gradients are the same to 1e-5: `tests/test_grpo.py`.
"""

import copy

import numpy as np
import pytest
import torch

import workbench as wb
from tests.bench import ratios
from workbench.advantages import group_normalized
from workbench.grpo import grpo_step
from workbench.objectives import policy_loss

REPEATS = 9


def scored(lab, policy, seed):
    """A round of 32 problems x 8 rollouts and their advantages (256,)."""
    problems = lab.problems.draw(32, 0, seed)[0]
    rollouts = policy.generate(problems, [8] * 32, lab.sampling, seed)
    scores = lab.verifier.score(list(rollouts.text), list(rollouts.answer))
    return rollouts, group_normalized(scores.reward, rollouts.problem)


def plain_step(policy, optimizer, rollouts, advantages):
    """The same step as it is written down: every row, padded to the longest, logits of every position."""
    optimizer.zero_grad()
    ids, mask = full_rows(rollouts)
    logits = policy.model(input_ids=ids).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[:, :, 0]
    behaviour = torch.zeros(mask.shape).masked_scatter(
        mask, torch.as_tensor(rollouts.logprobs.values)
    )
    loss = policy_loss(
        logprobs, behaviour, torch.as_tensor(advantages, dtype=torch.float32), mask, mean="token"
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()


def full_rows(rollouts):
    """Prompt and response of each row as padded ids (R, T), and which of the next tokens are response, (R, T - 1)."""
    prompts, ends = rollouts.prompt.lengths, rollouts.prompt.lengths + rollouts.lengths
    place = np.arange(ends.max())
    ids = np.zeros((len(rollouts), len(place)), dtype=np.int64)
    ids[place < prompts[:, None]] = rollouts.prompt.values
    response = (place >= prompts[:, None]) & (place < ends[:, None])
    ids[response] = rollouts.response.values
    return torch.as_tensor(ids), torch.as_tensor(response[:, 1:])


@pytest.fixture(scope="module")
def material():
    lab = wb.labs.tiny(held_out=0)
    policy = lab.policy()
    with lab.verifier:
        return policy, [scored(lab, policy, seed) for seed in range(REPEATS)]


def stepper(step, policy, rounds):
    """A job that takes one step on the next of the rounds, with a policy and an optimizer of its own."""
    policy, turn = copy.deepcopy(policy), iter([rounds[0], *rounds])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-4)
    return lambda: step(policy, optimizer, *next(turn))


def test_an_update(material):
    policy, rounds = material
    bucketed = lambda *arguments: grpo_step(*arguments, micro_tokens=1024)  # noqa: E731
    steps = [stepper(step, policy, rounds) for step in (grpo_step, bucketed, plain_step)]
    ours, small, plain = (np.array(spent) for spent in ratios.turns(*steps, repeats=REPEATS))
    assert (
        ratios.note(
            "update of 32 x 8: ours / plain (all rows, one padded batch, full logits)", ours / plain
        )
        < 1
    )
    ratios.note("update of 32 x 8: the same with micro-batches of 1,024 tokens", small / plain)
    computed = [rollouts.take(advantages != 0) for rollouts, advantages in rounds]
    shares = [
        (part.prompt.lengths + part.lengths).sum() / full_rows(rollouts)[0].numel()
        for part, (rollouts, _) in zip(computed, rounds)
    ]
    ratios.note(
        "update of 32 x 8: tokens of rows with an advantage / positions of the plain batch", shares
    )
