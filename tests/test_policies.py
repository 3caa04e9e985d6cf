"""The contract that every policy keeps, run on each kind that this machine can hold."""

import numpy as np
import pytest
import torch
from conftest import tiny_policy

import workbench.policies.transformers as room
from workbench.policies import Sampling
from workbench.problems import Problem, arithmetic

KINDS = {"full": {}, "lora": {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}}}
PROMPTS = [p.prompt for p in arithmetic(6, seed=2)]
SAMPLING = Sampling(max_new_tokens=32)


@pytest.fixture(params=KINDS)
def policy(request):
    if request.param == "lora":
        pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    made = tiny_policy(**KINDS[request.param])
    if request.param == "lora":  # an adapter starts at zero: move it, so that it matters
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    return made


def responses(rollouts):
    return [rollouts.response[i].tolist() for i in range(len(rollouts))]


def test_sampled_logprobs_agree_with_a_fresh_forward_pass(policy):
    rollouts = policy.generate(PROMPTS, [3] * 6, SAMPLING, seed=1)
    with torch.no_grad():
        fresh, entropy = policy.logprobs(rollouts, entropy=True)
    assert np.abs(fresh.numpy() - rollouts.logprobs.padded()).max() < 1e-4
    mean = entropy.numpy().sum(1) / rollouts.lengths
    assert np.abs(mean - rollouts.entropy).max() < 1e-4


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_logprobs_are_of_the_tempered_distribution(policy, temperature):
    rollouts = policy.generate(PROMPTS, [2] * 6, Sampling(temperature=temperature, max_new_tokens=16), seed=1)
    with torch.no_grad():
        assert np.abs(policy.logprobs(rollouts, temperature).numpy() - rollouts.logprobs.padded()).max() < 1e-4


def test_greedy_equals_generate_token_for_token(policy):
    rollouts = policy.generate(PROMPTS, [1] * 6, Sampling(temperature=0, max_new_tokens=32), seed=0)
    batch = policy.tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    out = policy.model.generate(**batch, do_sample=False, max_new_tokens=32, pad_token_id=0)[:, batch["input_ids"].shape[1]:]
    assert responses(rollouts) == [[t for t in row if t != 0] for row in out.tolist()]


def test_a_prompts_responses_do_not_depend_on_the_others(policy):
    seeds = list(range(6))
    together = policy.generate(PROMPTS, [2, 3, 1, 4, 2, 2], SAMPLING, seeds)
    alone = policy.generate(PROMPTS[3:4], [4], SAMPLING, seeds[3:4])
    assert responses(together)[6:10] == responses(alone)
    policy.rows = 4  # sampled in batches of four
    assert responses(policy.generate(PROMPTS, [2, 3, 1, 4, 2, 2], SAMPLING, seeds)) == responses(together)


def test_counts_order_and_columns(policy):
    problems = arithmetic(4, seed=5)
    rollouts = policy.generate(problems, [2, 0, 1, 3], SAMPLING, seed=3)
    ids = [p.id for p in problems]
    assert rollouts.problem.tolist() == [ids[0]] * 2 + [ids[2]] + [ids[3]] * 3
    assert rollouts.draw.tolist() == [0, 1, 0, 0, 1, 2] and rollouts.answer[2] == problems[2].answer
    assert np.isnan(rollouts.reward).all() and (rollouts.lengths >= 1).all()
    assert len(policy.generate(problems, [0] * 4, SAMPLING, seed=3)) == 0


def test_truncation_and_end_token(policy):
    rollouts = policy.generate(PROMPTS, [4] * 6, Sampling(max_new_tokens=6), seed=0)
    ends = np.array([rollouts.response[i][-1] == policy.tokenizer.eos_token_id for i in range(len(rollouts))])
    assert (rollouts.truncated == ~ends).all() and rollouts.truncated.any()
    assert (rollouts.lengths[rollouts.truncated] == 6).all()


def test_stop_strings_end_a_response(policy):
    rollouts = policy.generate(PROMPTS, [2] * 6, Sampling(max_new_tokens=32, stop=("=",)), seed=0)
    with_stop = [text for text in rollouts.text if "=" in text]
    assert with_stop and all(text.index("=") == len(text) - 1 for text in with_stop)


def test_samples_follow_the_distribution(policy):
    n = 4000
    rollouts = policy.generate(["7+5="], [n], Sampling(max_new_tokens=1), seed=11)
    first, logprob = rollouts.response.values, rollouts.logprobs.values
    for token in np.unique(first):
        p = np.exp(logprob[first == token][0])
        assert abs((first == token).mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-3


def test_top_k_one_is_greedy_and_top_p_keeps_the_head(policy):
    greedy = policy.generate(PROMPTS, [1] * 6, Sampling(temperature=0, max_new_tokens=12), seed=0)
    assert responses(policy.generate(PROMPTS, [1] * 6, Sampling(top_k=1, max_new_tokens=12), seed=9)) == responses(greedy)
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    kept = room._restrict(probabilities, Sampling(top_p=0.7))
    assert kept.tolist() == [[pytest.approx(0.5), pytest.approx(0.3), 0, 0]]


def test_chunked_logits_give_the_same_gradient(policy, monkeypatch):
    rollouts = policy.generate(PROMPTS, [2] * 6, SAMPLING, seed=1)

    def gradient():
        for p in policy.parameters():
            p.grad = None
        policy.logprobs(rollouts).sum().backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters()])

    whole = gradient()
    monkeypatch.setattr(room, "LOGIT_CHUNK", 20 * len(policy.tokenizer))
    assert torch.allclose(gradient(), whole, rtol=1e-4, atol=1e-4 * whole.abs().max().item())


def test_state_round_trip_and_save(policy, tmp_path):
    before = policy.state_dict()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    policy.load_state_dict(before)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), policy.state_dict().values()))
    with pytest.raises(ValueError, match="parameter names differ"):
        policy.load_state_dict({"x": torch.zeros(1)})
    policy.save(tmp_path)
    assert list(tmp_path.glob("*.safetensors")) and not list(tmp_path.glob("*.bin"))


def test_frozen_reference_stays(policy):
    rollouts = policy.generate(PROMPTS, [1] * 6, SAMPLING, seed=1)
    reference = policy.frozen()
    with torch.no_grad():
        before = reference.logprobs(rollouts)
        for p in policy.parameters():
            p.mul_(1.5)
        assert torch.equal(reference.logprobs(rollouts), before)
        assert not torch.allclose(policy.logprobs(rollouts), before)


@pytest.mark.parametrize("call, message", [
    (lambda p: p.generate(PROMPTS, [1, 2], SAMPLING, 0), "one count for each of the 6 prompts"),
    (lambda p: p.generate(PROMPTS, [-1] * 6, SAMPLING, 0), "counts cannot be negative"),
    (lambda p: tiny_policy(template="no place"), r"must contain \{prompt\}"),
    (lambda p: tiny_policy(template="chat"), "no chat template"),
    (lambda p: Sampling(temperature=-1), "temperature=-1"),
    (lambda p: Sampling(top_p=0), "top_p=0"),
    (lambda p: Sampling(max_new_tokens=0), "max_new_tokens=0"),
])
def test_bad_arguments(policy, call, message):
    with pytest.raises(ValueError, match=message):
        call(policy)


def test_template_surrounds_the_prompt():
    made = tiny_policy(template="({prompt}")
    assert made.tokenizer.decode(made.encode(["1+2="])[0]) == "(1+2="
    assert made.generate([Problem("x", "1+2=", "3")], [1], SAMPLING, 0).prompt.lengths.tolist() == [5]


def test_a_missing_model_says_what_to_do():
    with pytest.raises(OSError, match="hf download nobody/no-such-model"):
        room.TransformersPolicy.from_pretrained("nobody/no-such-model")
