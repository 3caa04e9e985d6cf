"""Which TRL this package works with, checked when it is imported.

`workbench.trl.GRPOTrainer` overrides private methods of TRL's trainer. If TRL renamed one of them,
it would never be called and the trainer would silently do something else, so a method that is
missing or takes other parameters is an error at import.
"""

import inspect

try:
    import trl
except ImportError:
    raise ImportError("workbench.trl needs a package: pip install 'trl>=1.14.2,!=1.15.0'") from None

TESTED = "1.14.2 and 1.16.0"

# The methods that our trainer overrides or calls, with the parameters that it needs, in this order.
EXPECTED = {
    "_get_train_sampler": ["dataset"],
    "_prepare_inputs": ["generation_batch"],
    "_generate_and_score_completions": ["inputs"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": ["model"],
    "_compute_loss": ["model", "inputs"],
    "training_step": ["model", "inputs", "num_items_in_batch"],
    "_save_checkpoint": ["model", "trial"],
    "_load_optimizer_and_scheduler": ["checkpoint"],
}


def check_overridden(trainer: type, version: str) -> None:
    """Raise ImportError unless TRL's trainer, of a version, has the methods that ours overrides."""
    methods = dict(inspect.getmembers(trainer, inspect.isfunction))
    for name, wanted in EXPECTED.items():
        present = inspect.signature(methods[name]).parameters if name in methods else []
        if name not in methods or [each for each in present if each in wanted] != wanted:
            raise ImportError(
                f"workbench.trl is tested with TRL {TESTED}, and TRL {version} does not fit "
                f"(GRPOTrainer.{name} is expected, with {', '.join(wanted)}); install a tested "
                "version: pip install 'trl==1.16.0'"
            )


check_overridden(trl.GRPOTrainer, trl.__version__)
