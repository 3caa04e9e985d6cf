"""Which verl this package works with, checked where verl is first needed.

`workbench.verl` itself loads nothing of verl, since verl lives in an environment of its own. `load`
brings a module of verl or says how to install it. `workbench.verl.v1`, which cannot do without
verl, checks its version and the methods that it overrides or calls: a renamed method would never be
called, and verl would silently do something else.
"""

from __future__ import annotations

import importlib
import logging
import re
from types import ModuleType

from workbench.adapters import check_methods
from workbench.utils.requirements import installed_version

logger = logging.getLogger(__name__)

TESTED = "0.9.1"
LOWEST = (0, 9, 1)  # 0.9.0 has no hook for checkpoints
BELOW = (0, 10)
INSTALL = f'pip install "verl=={TESTED}" TransferQueue cachetools fastapi uvicorn'

# What `workbench.verl.v1` overrides or calls, with the parameters that it needs.
EXPECTED = (
    "ReplayBuffer.__init__(trainer_mode, trainer_config, sampler_kwargs, poll_interval, refill_fn)",
    "ReplayBuffer.sample(global_steps, partition_id, batch_size)",
    "ReplayBuffer._sync_metadata_from_transfer_queue()",
    "ReplayBuffer._wait_for_next_poll(partition_id, last_debug_time)",
    "AgentLoopManagerTQ.generate_sequences(prompts)",
    "PPOTrainer._add_prompts_to_generate(num_prompts)",
    "PPOTrainer._balance_batch(batch, metrics)",
    "PPOTrainer._compute_old_log_prob(batch, metrics)",
    "CheckpointCallback.on_save(trainer, global_step, checkpoint_dir)",
)


def load(module: str) -> ModuleType:
    """A module of verl; an ImportError of one line where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise explained(error) from error


def explained(error: ImportError) -> ImportError:
    """What to raise when a part of verl cannot be imported: a version that is not supported, or
    what is missing and how to get it.
    """
    check_installed()
    return ImportError(f"{error.name or error} is missing; verl has its own environment: {INSTALL}")


def check_installed() -> None:
    """`check_version` of the verl that is installed; nothing without one."""
    version = installed_version("verl")
    if version is not None:
        check_version(version)


def check_version(version: str) -> None:
    """Raise ImportError for a version of verl that is not supported, and warn of an untested one.

    Examples
    --------
    >>> check_version("0.9.1")
    >>> check_version("0.8.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ImportError: verl 0.8.0 is installed, and workbench.verl works with 0.9.1 up to, but ...
    """
    # The first three numbers, so that endings such as .post1 or .dev0 do not matter.
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not LOWEST <= numbers < BELOW:
        lowest, below = (".".join(map(str, bound)) for bound in (LOWEST, BELOW))
        raise ImportError(
            f"verl {version} is installed, and workbench.verl works with {lowest} up to, but not "
            f"including, {below}: {INSTALL}"
        )
    if version != TESTED:
        logger.warning("verl %s is installed; workbench.verl is tested with %s", version, TESTED)


def check_classes(version: str, *kinds: type) -> None:
    """Raise ImportError unless these classes of verl have what ours override or call."""
    advice = (
        f"verl {version} does not fit workbench.verl, which is tested with {TESTED}; install the "
        f"tested version: {INSTALL}"
    )
    check_methods(kinds, EXPECTED, advice)
