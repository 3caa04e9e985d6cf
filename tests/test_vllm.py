"""The contract (`contract.py`) on policies that vLLM samples for, with its CPU build.

Run by `make test-vllm`. Left to `test_gpu.py`: bfloat16, CUDA graphs, the split of a GPU's memory,
sleeping, and weights shared with Unsloth.
"""

import os
from importlib.util import find_spec

import pytest

if not find_spec("vllm"):
    pytest.skip(
        "vllm is not installed; make test-vllm has an environment with its CPU build",
        allow_module_level=True,
    )

from conftest import go, tiny_policy
from contract import (
    GREEDY,
    LORA,
    PROMPTS,
    SAMPLING,
    Contract,
    responses,
    sampler_gap,
    shaken,
)

import workbench as wb
from workbench.labs import shipped
from workbench.problems import arithmetic

SMALL = {"gpu_memory_utilization": 0.05}
# GiB. The share above is of all memory, and two engines are started.
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"


class TestVLLM(Contract):
    apart = True
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        return tiny_policy(vllm=SMALL)

    def test_prompts_that_leave_too_little_room_are_refused(self, made):
        with pytest.raises(
            ValueError,
            match=r"max_length=128: problem .3. has 10 tokens .* raise it, or lower sampling",
        ):
            made.generate(PROMPTS, [1] * 6, wb.policies.Sampling(max_new_tokens=126), 0)

    def test_the_gap_is_unknown_where_the_sampler_leaves_tokens_out(self, made):
        assert made.comparable(SAMPLING)
        assert not made.comparable(wb.policies.Sampling(top_p=0.5))

    def test_the_gap_shows_other_weights(self, made):
        """The number can fail: with the hand-over of weights switched off it is large."""
        first = made.state_dict()
        update = made.engine.update
        made.engine.update = lambda model: None
        shaken(made, 0.05)
        gap = sampler_gap(made, made.generate(PROMPTS, [2] * 6, SAMPLING, 0))
        made.engine.update = update
        repaired = sampler_gap(made, made.generate(PROMPTS, [2] * 6, SAMPLING, 0))
        made.load_state_dict(first)
        assert gap.mean() > 100 * self.tolerance > repaired.max()

    def test_one_engine_serves_the_policies_of_a_process(self, made):
        plain = responses(made.generate(PROMPTS, [1] * 6, GREEDY, 0))
        other = shaken(tiny_policy(vllm=SMALL), 0.2)
        assert other.engine is made.engine
        assert responses(other.generate(PROMPTS, [1] * 6, GREEDY, 0)) != plain
        assert responses(made.generate(PROMPTS, [1] * 6, GREEDY, 0)) == plain


@pytest.mark.parametrize("merges", [False, True], ids=["adapter", "merged"], scope="class")
class TestVLLMLora(Contract):
    apart = True
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self, merges):
        return shaken(tiny_policy(lora=LORA, vllm={**SMALL, "merges": merges}))

    def test_an_adapter_is_handed_over_when_it_has_changed(self, policy, merges):
        policy.generate(PROMPTS, [1] * 6, GREEDY, 0)
        updates = policy.engine.updates
        numbers = [] if merges else policy.engine.llm.llm_engine.list_loras()
        policy.generate(PROMPTS, [1] * 6, GREEDY, 0)
        assert policy.engine.updates == updates
        shaken(policy)
        policy.generate(PROMPTS, [1] * 6, GREEDY, 0)
        assert policy.engine.updates == updates + 1
        if not merges:
            [number] = policy.engine.llm.llm_engine.list_loras()
            assert number > max(numbers)


def test_a_run_records_the_gap_and_resumes(tmp_path):
    lab = wb.labs.transformers(
        str(shipped("models/tiny")),
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        samples=1,
        device="cpu",
        engine="vllm",
        learning_rate=1e-3,
        sampling=wb.policies.Sampling(max_new_tokens=24),
        **SMALL,
    )
    go(
        wb.Run(
            lab, wb.methods.aero(explore=2, total=4, n_max=8), out=tmp_path, problems_per_round=4
        ),
        2,
    )
    rollouts = wb.load(tmp_path).rollouts()
    assert len(rollouts) >= 16
    assert rollouts["sampler_gap"].dropna().between(0, 1e-3).all()
    assert set(rollouts["round"]) == {1, 2}
    assert len(go(wb.Run.resume(tmp_path), 3)) == 1
