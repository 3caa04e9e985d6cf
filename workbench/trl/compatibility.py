"""Which TRL this package works with, checked when it is imported.

`workbench.trl.GRPOTrainer` overrides private methods of TRL's trainer. If TRL renamed one of them,
it would never be called and the trainer would silently do something else, so a method that is
missing or takes other parameters is an error at import.
"""

from __future__ import annotations

import inspect

try:
    import trl
except ImportError:
    raise ImportError("workbench.trl needs a package: pip install 'trl>=1.14.2,!=1.15.0'") from None

TESTED = "1.14.2 and 1.16.0"

# The methods that our trainer overrides or calls, and how their parameters begin.
EXPECTED = {
    "_prepare_inputs": ("generation_batch",),
    "_generate_and_score_completions": ("inputs",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": ("model",),
    "_compute_loss": ("model", "inputs"),
    "training_step": ("model", "inputs", "num_items_in_batch"),
    "log": ("logs", "start_time"),
    "_save_checkpoint": ("model", "trial"),
    "_load_optimizer_and_scheduler": ("checkpoint",),
}


def check_overridden(trainer: type, version: str) -> None:
    """Raise ImportError unless TRL's trainer has the methods that ours overrides.

    Parameters
    ----------
    trainer : type
        `trl.GRPOTrainer`.
    version : str
        Its version, for the message.
    """
    for name, expected in EXPECTED.items():
        method = getattr(trainer, name, None)
        if method is None:
            problem = f"it has no method {name}"
        else:
            parameters = tuple(inspect.signature(method).parameters)[1:]  # without self
            if parameters[: len(expected)] == expected:
                continue
            problem = f"its method {name} takes {', '.join(parameters) or 'nothing'}"
        raise ImportError(
            f"workbench.trl is tested with TRL {TESTED}, and TRL {version} does not fit: "
            f"{problem}, where {name}({', '.join(expected)}) is expected; install a tested "
            "version: pip install 'trl==1.16.0'"
        )


check_overridden(trl.GRPOTrainer, trl.__version__)
