"""verl on a CPU, so that a run can be tried without a GPU: a platform, an engine and a server.

verl 0.9.1 knows GPUs and NPUs only, and samples with vLLM, SGLang or TensorRT-LLM. It has a
registry for platforms, for training engines and for rollout servers, and this module fills all
three: the CPU as a platform, verl's own FSDP engine on it, and a server that samples with
transformers.

Set VERL_USE_EXTERNAL_MODULES=verl_cpu and VERL_PLATFORM=cpu before verl is imported, and
`actor_rollout_ref.rollout.name=transformers`, as verl_run.py does. It is for one process and tiny
models: responses are sampled one request at a time, without top-k or top-p.
"""

import contextlib

import ray
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class Memory:
    """What verl asks of `torch.cuda`. The CPU has no memory of its own to report or to free."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, None) or (lambda *args, **options: 0)

    def mem_get_info(self, *args):
        """(free, total) bytes, unknown."""
        return 0, 0

    def get_device_name(self, *args):
        """Not in verl's table of devices, so utilisation is not reported."""
        return "cpu"


@PlatformRegistry.register(platform="cpu")
class CPU(PlatformBase):
    """The CPU as verl's accelerator. Ray counts it as one "GPU", so that placement groups work."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = Memory()

    def is_available(self):
        return True

    def is_platform_available(self, use_smi_check=False):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg):
        return contextlib.nullcontext()

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def _nothing(self, *args):
        """No memory to give back, nothing to wait for, no profiler."""

    set_device = _nothing
    synchronize = _nothing
    set_allocator_settings = _nothing
    empty_cache = _nothing
    profiler_start = _nothing
    profiler_stop = _nothing


class Server:
    """A Ray actor that samples with transformers and takes new weights from the trainer."""

    def __init__(self, path, length):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.length = length
        self.steps = 0

    async def generate(self, request_id, *, prompt_ids, sampling_params, **further):
        """One response: token ids and their log-probabilities."""
        from verl.workers.rollout.replica import TokenOutput

        temperature = sampling_params.get("temperature", 1.0)
        out = self.model.generate(
            torch.tensor([prompt_ids]),
            max_new_tokens=self.length,
            do_sample=temperature > 0,
            temperature=temperature or 1.0,
            top_k=0,
            top_p=1.0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = out.sequences[0, len(prompt_ids) :]
        logits = torch.stack(out.logits)[:, 0] / (temperature or 1.0)
        logprobs = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        return TokenOutput(
            token_ids=tokens.tolist(),
            log_probs=logprobs.tolist(),
            stop_reason="completed",
            extra_fields={"global_steps": self.steps},
        )

    async def load(self, weights, steps):
        """New weights by name."""
        self.model.load_state_dict(weights, strict=False)
        if steps is not None:
            self.steps = steps

    async def sleep(self, *args, **options):
        """Weights stay in memory."""

    wake_up = sleep
    clear_kv_cache = sleep
    abort_all_requests = sleep
    resume_generation = sleep


def server_name(rank):
    """The name of a server's actor."""
    return f"transformers_server_{rank}"


# These ask for the platform when they are imported.
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead  # noqa: E402
from verl.workers.rollout import base  # noqa: E402
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry  # noqa: E402


class Adapter(base.BaseRollout):
    """The trainer's end: sends weights to the server."""

    async def resume(self, tags):
        """Nothing was released."""

    release = resume

    async def update_weights(self, weights, global_steps=None, **further):
        """Full weights of the model, by name."""
        named = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in weights}
        await ray.get_actor(server_name(0)).load.remote(named, global_steps)


class Replica(RolloutReplica):
    """One server."""

    async def launch_servers(self):
        """Start the server's actor."""
        name = server_name(self.replica_rank)
        actor = ray.remote(num_cpus=0)(Server).options(name=name)
        server = actor.remote(self.model_config.path, self.config.response_length)
        self.servers = [server]
        self._server_handle = server
        self._server_address = name


def one_backend(init=torch.distributed.init_process_group):
    """verl asks for "cpu:gloo,<device>:<backend>", which would name the CPU twice here."""

    def initialize(backend=None, *args, **options):
        return init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **options)

    return initialize


torch.distributed.init_process_group = one_backend()
base._ROLLOUT_REGISTRY["transformers", "async"] = f"{__name__}.Adapter"
RolloutReplicaRegistry.register("transformers", lambda: Replica)
EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(
    FSDPEngineWithLMHead
)


def reward(data_source, solution_str, ground_truth, extra_info=None):
    """verl's reward function: is the number in the last box the right one?"""
    answer = solution_str.rpartition("\\boxed{")[2].partition("}")[0].strip()
    return {"score": float(answer == ground_truth), "acc": answer == ground_truth}
