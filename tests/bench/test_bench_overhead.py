"""What of a step is not arithmetic: packing, hand-over, records, slots, Python per token.

A round of 16 problems x 8 rollouts of 1,024 tokens each is played, updated and recorded by a model
without a single layer, so that everything but the layers is there: drawing the tokens, texts and
tables, verdicts, the method, packed rows, the optimizer step, and two tables brought to the disk.
It is held against the least arithmetic of a model of 135 million parameters on this processor:
2 operations a parameter for a token that is sampled, and 6 for one that is trained.

With vLLM the loop over tokens is vLLM's own. What is ours then is what becomes of the lists that it
returns, timed by itself.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import workbench as wb
from tests.bench import ratios
from workbench.policies.transformers import TransformersPolicy
from workbench.policies.vllm import _read
from workbench.verifiers import Scores, Verifier

PROBLEMS, N, TOKENS = 16, 8, 1024
REPEATS = 3
PARAMETERS = 135e6
WIDTH, INNER = 576, 1536  # of SmolLM2-135M
SAMPLED, TRAINED = 2, 6  # operations a parameter and token
PHASES = ("generate", "verify", "schedule", "update")


class EverySecond(Verifier):
    """Rewards every second response, so that all groups have a gradient."""

    def judge(self, responses, answers):
        return Scores.of(["ok" if i % 2 else "wrong" for i in range(len(responses))])


def without_layers(tokenizer):
    """A policy whose model is an embedding, a norm and a head, and whose responses never end."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=0,
        num_attention_heads=1,
        max_position_embeddings=2 * TOKENS,
    )
    policy = TransformersPolicy(LlamaForCausalLM(config), tokenizer)
    policy.never = torch.tensor(policy.end_ids)
    return policy


def seconds_of_arithmetic():
    """The least seconds of the model's products for the round, on this processor."""
    weight, inputs = torch.randn(WIDTH, INNER), torch.randn(PROBLEMS * N, WIDTH)

    def products():
        for _ in range(100):
            inputs @ weight

    [spent] = ratios.turns(products, repeats=REPEATS, clock=ratios.OF_THE_PROCESS)
    operations = 2 * 100 * inputs.numel() * INNER
    tokens = PROBLEMS * N * TOKENS
    return [each / operations * (SAMPLED + TRAINED) * PARAMETERS * tokens for each in spent]


def test_what_a_step_does_beside_the_model(tmp_path):
    lab = wb.labs.tiny(held_out=0)
    policy = without_layers(lab.policy().tokenizer)
    lab = replace(
        lab,
        make_policy=lambda: policy,
        verifier=EverySecond(),
        sampling=wb.policies.Sampling(max_new_tokens=TOKENS),
    )
    run = wb.Run(
        lab,
        wb.methods.grpo(N),
        out=tmp_path / "run",
        problems_per_round=PROBLEMS,
        evaluate_every=0,
        checkpoint_every=1000,
    )
    rounds = run.rounds(REPEATS + 1, progress=False)
    spent = []
    for _ in range(REPEATS + 1):
        spent.append(ratios.seconds(lambda: next(rounds), ratios.OF_THE_PROCESS))
    rounds.close()
    table = run.record.rounds
    assert (table["length"] == TOKENS).all() and (table["trained"] == PROBLEMS * N).all()
    assert policy.layout == "packed"

    name = f"a round of {PROBLEMS} x {N} x {TOKENS:,} without the model"
    ratios.note(f"{name}: seconds", spent[1:], unit="s")
    # Phases are timed by the clock on the wall, so that only their shares can be compared.
    wall = sum(table[f"seconds_{phase}"] for phase in PHASES)
    for phase in PHASES:
        ratios.note(f"{name}: share of phase {phase}", (table[f"seconds_{phase}"] / wall)[1:])
    of_model = seconds_of_arithmetic()
    shares = [100 * ours / (ours + model) for ours, model in zip(spent[1:], of_model)]
    share = ratios.note(f"{name}: share of a step of 135 M", shares, "<= 5", "%")
    assert share < 10


def test_what_becomes_of_the_responses_of_vllm():
    """128 responses of 1,024 tokens, as vLLM's flat lists."""
    rng = np.random.default_rng(0)
    completions = [
        SimpleNamespace(
            token_ids=rng.integers(0, 150_000, TOKENS).tolist(),
            logprobs=SimpleNamespace(
                logprobs=np.repeat(-rng.random(TOKENS), 2).tolist(),
                start_indices=list(range(0, 2 * TOKENS, 2)),
            ),
            finish_reason="length",
        )
        for _ in range(PROBLEMS * N)
    ]
    [spent] = ratios.turns(
        lambda: _read(completions, margins=False), repeats=5, clock=ratios.OF_THE_PROCESS
    )
    name = f"hand-over of {PROBLEMS} x {N} x {TOKENS:,} tokens from vLLM: seconds"
    assert ratios.note(name, spent, "<= 0.5", "s") < 2
