"""The contract (`contract.py`) on policies that vLLM samples for, with its CPU build: an engine in
this process, and vLLM's own server.

Run by `make test-vllm`. Left to `test_gpu.py`: bfloat16, CUDA graphs, the split of a GPU's memory,
sleeping, and weights shared with Unsloth.
"""

import json
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from urllib.request import Request, urlopen

import pytest

if not find_spec("vllm"):
    pytest.skip(
        "vllm is not installed; make test-vllm has an environment with its CPU build",
        allow_module_level=True,
    )

from conftest import go, tiny_policy
from contract import GREEDY, LORA, PROMPTS, SAMPLING, Contract, responses, sampler_gap, shaken
from test_served import ByFile

import workbench as wb
from workbench.labs import shipped
from workbench.policies.served import ServedEngine, Server, ServerError
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
            match=r"max_length=128: problem .3. has 10 tokens",
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

    def test_an_interrupted_call_leaves_no_requests_behind(self, made, monkeypatch):
        before = responses(made.generate(PROMPTS, [1] * 6, GREEDY, 0))
        engine = made.engine.llm.llm_engine
        step, steps = engine.step, []

        def interrupted():
            steps.append(step())
            if len(steps) == 2:
                raise KeyboardInterrupt
            return steps[-1]

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine, "step", interrupted)
            made.generate(PROMPTS, [1] * 6, GREEDY, 0)
        assert responses(made.generate(PROMPTS, [1] * 6, GREEDY, 0)) == before


IN_A_PLAIN_PROCESS = """
from conftest import tiny_policy

def first():
    policy = tiny_policy(vllm={"gpu_memory_utilization": 0.05, "max_length": 64})

if __name__ == "__main__":
    first()
    tiny_policy(vllm={"gpu_memory_utilization": 0.05, "max_length": 32})
    print("let go")
"""


def test_the_first_engine_of_a_process_is_let_go():
    """vLLM keeps the errors of packages that it did not find, with their tracebacks."""
    folder = os.path.dirname(__file__)
    ended = subprocess.run(
        [sys.executable, "-c", IN_A_PLAIN_PROCESS], cwd=folder, capture_output=True, text=True
    )
    assert ended.returncode == 0 and "let go" in ended.stdout, ended.stderr[-2000:]


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


# vLLM's own server, in a process of its own


def start(port):
    """The process of a server of the tiny model, with the settings of `trl vllm-serve`.

    That command asks for the distribution `vllm`, which the build for CPUs is not.
    """
    arguments = ["--model", str(shipped("models/tiny")), "--served-model-name", "tiny"]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    arguments += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    arguments += ["--enforce-eager", "--max-num-seqs", "64", "--uvicorn-log-level", "warning"]
    return subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
        start_new_session=True,
    )


def wait_for(url, process):
    for _ in range(150):
        assert process.poll() is None, "the server did not start"
        try:
            Server(url, retries=0, deadline=2.0).ask("/models")
            return
        except ServerError:
            time.sleep(2)
    raise AssertionError("the server did not start in five minutes")


@pytest.fixture(scope="module")
def served():
    """The address of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start(port)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


class ByFolder(ByFile):
    """Weights for vLLM's server by a file that it reads again.

    TRL's own client hands them over by NCCL, which needs an NVIDIA GPU.
    """

    def post(self, path, body):
        request = Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        assert urlopen(request).status == 200

    def tell(self):
        options = {"weights_path": str(self.path.parent)}
        self.post("/collective_rpc", {"method": "reload_weights", "kwargs": options})

    def reset_prefix_cache(self):
        self.post("/reset_prefix_cache", {})


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "adapter"], scope="class")
class TestVLLMServer(Contract):
    apart = True
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self, served, lora, tmp_path_factory):
        client = ByFolder(served, tmp_path_factory.mktemp("weights"))
        policy = tiny_policy(lora=lora, engine=ServedEngine(Server(served), client))
        assert policy.max_length == 128
        return policy if lora is None else shaken(policy)


def test_a_study_without_training_on_a_real_server(served, tmp_path):
    lab = wb.labs.served(
        "tiny",
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        server=Server(served),
        template="{prompt}",
        sampling=wb.policies.Sampling(max_new_tokens=24),
        samples=1,
    )
    method = wb.methods.knapsack(4)
    go(wb.Run(lab, method, out=tmp_path, problems_per_round=4), 2)
    rows = go(wb.Run.resume(tmp_path, lab=lab), 3)
    assert rows[0]["rollouts"] == 16 and rows[0]["steps"] == 0
    assert wb.load(tmp_path).rollouts()["correct"].any()


def test_a_model_that_is_not_served_is_named(served):
    served_policy = wb.policies.served.ServedPolicy(Server(served), "gpt", "{prompt}")
    with pytest.raises(ServerError, match="gpt"):
        served_policy.generate(PROMPTS[:1], [1], SAMPLING, 0)
