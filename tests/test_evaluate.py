"""Held-out scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from workbench.evaluation import answers, evaluate
from workbench.policies import Sampling
from workbench.policies.merged import MergedDecoder
from workbench.problems import arithmetic
from workbench.verifiers import Math

PROBLEMS = arithmetic(10, levels=(1, 2), split="heldout")


def test_a_row_a_problem(policy):
    with Math(boxed=True) as verifier:
        frame = evaluate(policy, PROBLEMS, verifier, k=4)
        again = evaluate(policy, PROBLEMS, verifier, k=4)
        other = evaluate(policy, PROBLEMS, verifier, k=4, seed=1)
    assert frame["problem"].tolist() == [p.id for p in PROBLEMS]
    assert (frame["samples"] == 4).all()
    assert frame["correct"].between(0, 4).all()
    assert 0 < frame["correct"].sum() < 4 * len(PROBLEMS)
    assert frame.equals(again)
    assert not frame.equals(other)
    assert frame["greedy"].dtype == bool


def test_draws_do_not_depend_on_the_other_problems(policy):
    with Math(boxed=True) as verifier:
        whole = evaluate(policy, PROBLEMS, verifier, k=4)
        part = evaluate(policy, list(PROBLEMS)[5:], verifier, k=4)
    assert np.array_equal(whole["correct"][5:], part["correct"])


def test_an_evaluation_shares_prefixes_and_leaves_the_policy_as_it_was(policy, monkeypatch):
    """Seconds of rounds are compared, so rounds compute each response by itself."""
    seen = []
    generate = type(policy).generate

    def watched(self, *arguments):
        seen.append(self.share_prefixes)
        return generate(self, *arguments)

    monkeypatch.setattr(type(policy), "generate", watched)
    with Math(boxed=True) as verifier:
        evaluate(policy, PROBLEMS, verifier, k=4)
    policy.generate(list(PROBLEMS), [1] * len(PROBLEMS), Sampling(), 0)
    assert seen == [True, True, False]


def test_an_evaluation_takes_the_prompts_in_once(policy, monkeypatch):
    """The greedy responses are those of a call of their own, also after the weights have moved."""
    taken_in = []
    begin = MergedDecoder.begin

    def counted(self, ids, mask):
        taken_in.append(ids.shape)
        return begin(self, ids, mask)

    monkeypatch.setattr(MergedDecoder, "begin", counted)
    sampling = Sampling(max_new_tokens=12)
    greedy = replace(sampling, temperature=0.0)
    for _ in range(2):
        with Math(boxed=True) as verifier:
            frame = evaluate(policy, PROBLEMS, verifier, k=4, sampling=sampling)
            assert len(taken_in) == 1
            _, alone = answers(policy, list(PROBLEMS), verifier, 1, greedy, 0)
        assert frame["greedy"].tolist() == alone.tolist()
        assert policy.prompts_kept is None
        taken_in.clear()
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.05)


@pytest.mark.parametrize("problems, k, named", [(PROBLEMS, 0, "k=0"), ([], 4, "problems")])
def test_bad_arguments(policy, problems, k, named):
    with pytest.raises(ValueError, match=named):
        evaluate(policy, problems, None, k)
