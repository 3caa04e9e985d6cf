"""verl's scored batches as our tables, and an allocator at work on its prompts. Public face: `workbench.verl.integration`.

Pure arithmetic and bookkeeping: verl itself is needed only for batches of its own types, and loaded then.
"""

import copy
import hashlib
import importlib
import json

import numpy as np

from workbench.allocators import DynamicSampling, More, Rescue, Staged
from workbench.problems import Problem
from workbench.rollouts import Context, Rollouts
from workbench.utils.descriptions import describe, differences

INSTALL = 'pip install "verl==0.9.1" TransferQueue cachetools fastapi uvicorn'
SCORES = (
    "token_level_scores",
    "rm_scores",
)  # the reward before any KL term, where a trainer keeps it


def problem_ids(prompts):
    """Stable ids of prompts, (P,) str: a hash of each prompt, be it text or a list of chat messages."""
    return np.array(
        [
            hashlib.blake2b(_canonical(prompt).encode(), digest_size=12).hexdigest()
            for prompt in prompts
        ],
        dtype=str,
    )


def table(data, *, solved=1.0, step=0):
    """The scored rows of a `DataProto` as `Rollouts` with problem, reward, correct, round and `group`, the uid.

    reward: sum over tokens of `token_level_scores`, else of `rm_scores`. correct: where the column `acc` is 1, or, without
    that column, where the reward is at least `solved`. problem: from `raw_prompt`; without it, the uid, and then an
    allocator learns nothing from one round for the next.
    """
    scores = next((data.batch[name] for name in SCORES if name in data.batch.keys()), None)
    if scores is None or "uid" not in data.non_tensor_batch:
        raise ValueError(
            f"data: {' or '.join(SCORES)} (R, T) and a column uid are needed; score the rollouts first"
        )
    uid, prompts = data.non_tensor_batch["uid"].astype(str), data.non_tensor_batch.get("raw_prompt")
    reward, acc = scores.double().sum(-1).cpu().numpy(), data.non_tensor_batch.get("acc")
    correct = reward >= solved if acc is None else np.asarray(acc, dtype=np.float64) == 1
    return Rollouts(
        uid if prompts is None else problem_ids(prompts),
        reward=reward,
        correct=correct,
        round=np.full(len(uid), step),
        columns={"group": uid},
    )


class Allocation:
    """An allocator at work in verl: says how many rollouts each prompt gets, is told what came of them, remembers.

    allocator: copied, so one object belongs to one training run. seed: of its draws. stages: whether the caller drives
    several requests a round (`start`, `proceed`, `extend`, as `verl_v1` does); without it, `Staged`, `Rescue`,
    `DynamicSampling` and fresh success rates are refused. A prompt that occurs k times in a batch is one problem to the
    allocator, and each occurrence has its count: a total is exceeded by that much.
    """

    def __init__(self, allocator, seed=0, *, stages=False):
        carried_rates(allocator)
        rates = getattr(allocator, "rates", None)
        if not stages and (
            isinstance(allocator, (Staged, Rescue, DynamicSampling)) or getattr(rates, "spent", 0)
        ):
            raise ValueError(
                f"allocator={allocator}: it asks several times a round; use configuration(method) with verl's v1 "
                "trainer, or Uniform or Knapsack"
            )
        self.allocator, self.seed = copy.deepcopy(allocator), seed
        self.keep, self._plan, self._rows = None, None, []

    def allocate(self, prompts, step):
        """Sets `__rollout_n__`, the count of each prompt, in a batch with `raw_prompt`; returns the batch.

        prompts: `TensorDict` (v1's agent loop reads the count itself) or `DataProto` (then
        `prompts.sample_level_repeat(prompts.non_tensor_batch["__rollout_n__"])` repeats the prompts).
        """
        if hasattr(prompts, "non_tensor_batch"):
            counts = self.start(problem_ids(prompts.non_tensor_batch["raw_prompt"]), step)
            prompts.non_tensor_batch["__rollout_n__"] = counts
            return prompts
        tensordicts = load("verl.utils.tensordict_utils")
        counts = self.start(problem_ids(tensordicts.get(prompts, "raw_prompt")), step)
        tensordicts.assign_non_tensor_stack(prompts, "__rollout_n__", counts.tolist())
        return prompts

    def feedback(self, data, step, *, solved=1.0):
        """Tells the allocator what came of the counts: all scored rows of the step, kept or not (see `table`)."""
        rollouts = data if isinstance(data, Rollouts) else table(data, solved=solved, step=step)
        if self.proceed(rollouts) is not None:
            raise ValueError(
                f"allocator={self.allocator}: it asks again after its first rollouts, which `allocate` cannot carry"
            )
        self.learn(rollouts, step)

    def start(self, ids, step):
        """The first counts (P,) int64 for prompts with these ids (P,)."""
        self._rows, self.keep = [str(key) for key in ids], None
        self._plan = self.allocator.allocate(self._problems(), Context(self.seed, step))
        request = self._ask(None)
        if request is None:
            raise ValueError(f"allocator={self.allocator}: it asked for no rollouts")
        return request

    def proceed(self, rollouts):
        """Sends the round's rollouts so far: further counts (P,), `More` problems wanted, or None at the end.

        At the end `keep` holds the rows (K,) that go on, or None for all.
        """
        if self._plan is None:
            raise ValueError("proceed: no round is open; call `allocate` or `start` first")
        return self._ask(rollouts)

    def extend(self, ids):
        """Answers `More` with further prompts; returns the next request, counts for all prompts of the round."""
        self._rows += [str(key) for key in ids]
        return self._ask(self._problems())

    def learn(self, rollouts, step):
        """Ends the round: the allocator learns from all its rollouts."""
        if hasattr(self.allocator, "feedback"):
            self.allocator.feedback(rollouts, Context(self.seed, step))

    def metrics(self):
        """What the allocator measures of the round, name to float, without what is not a number yet."""
        measured = self.allocator.metrics() if hasattr(self.allocator, "metrics") else {}
        return {name: float(value) for name, value in measured.items() if np.isfinite(value)}

    def state_dict(self):
        """The allocator's configuration and what it remembers: JSON values and arrays."""
        memory = self.allocator.state_dict() if hasattr(self.allocator, "state_dict") else {}
        return {"allocator": describe(self.allocator), "memory": memory}

    def load_state_dict(self, state):
        """Sets the memory; ValueError for the state of another allocator."""
        odd = differences(describe(self.allocator), state["allocator"])
        if odd:
            raise ValueError(
                f"state: saved by another allocator (ours, theirs): {'; '.join(odd[:3])}"
            )
        if hasattr(self.allocator, "load_state_dict"):
            self.allocator.load_state_dict(state["memory"])

    def _problems(self):
        return [Problem(key, "", "") for key in dict.fromkeys(self._rows)]

    def _ask(self, answer):
        try:
            request = self._plan.send(answer)
        except StopIteration as end:
            self._plan, self.keep = None, end.value
            return None
        if isinstance(request, More):
            return request
        count = dict(zip(dict.fromkeys(self._rows), np.asarray(request).tolist()))
        return np.array([count[key] for key in self._rows], dtype=np.int64)


def carried_rates(allocator):
    """ValueError for success rates that need more than verl hands over."""
    kind = getattr(getattr(allocator, "rates", None), "kind", None)
    if kind in ("predictor", "epoch"):
        lacks = "the policy's states" if kind == "predictor" else "the epoch"
        raise ValueError(
            f"rates={kind!r}: verl does not hand the allocator {lacks}; use 'last', 'beta' or 'fresh'"
        )


def load(module):
    """A module of verl; an ImportError of one line where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{error.name or module} is missing; verl has its own environment: {INSTALL}"
        ) from error


def _canonical(prompt):
    return json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise ValueError(
        f"raw_prompt: a {type(value).__name__} has no stable id; prompts of text, numbers, lists and dicts have"
    )
