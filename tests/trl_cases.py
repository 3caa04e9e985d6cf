"""What the tests of the TRL trainer share: problems, small configurations, a hand-made round."""

import functools

import numpy as np
import pytest
import torch
import transformers
import trl
from datasets import Dataset

from workbench import trl as workbench_trl
from workbench.labs import shipped
from workbench.objectives import policy_loss
from workbench.policies.transformers import TransformersPolicy
from workbench.problems import arithmetic
from workbench.rollouts import Ragged, Rollouts
from workbench.rounds import Round
from workbench.verifiers import Math

MODEL = str(shipped("models/tiny"))
transformers.utils.logging.disable_progress_bar()


@functools.cache
def verifier():
    return Math(boxed=True)


def right(completions, answer, **_):
    """TRL's reward function of the tiny lab: 1 for a right answer, else 0."""
    return verifier().score(list(completions), list(answer)).reward.tolist()


def boxed(completions, **_):
    """A format reward: 1 where the response has a box, else 0."""
    return [float("\\boxed{" in text) for text in completions]


def dataset(n=32, levels=(1, 2, 3, 4), **options):
    problems = arithmetic(n, levels=levels, **options)
    rows = [{"prompt": p.prompt, "answer": p.answer, "level": p.level} for p in problems]
    return Dataset.from_list(rows)


def config(out, **options):
    """Sixteen rows a generation, in two micro-batches of one step."""
    settings = {
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 24,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
    }
    return trl.GRPOConfig(str(out), **{**settings, **options})


def trainer(
    out,
    method=None,
    *,
    make=workbench_trl.GRPOTrainer,
    model=MODEL,
    data=None,
    reward=right,
    options=(),
    **settings,
):
    """A trainer on the tiny model; `options` are the trainer's, `settings` the configuration's."""
    own = {} if make is trl.GRPOTrainer else {"method": method}
    if method is not None and "num_generations" not in settings:
        number = method.trained
        is_known = number is not None and number.of != "about"
        settings["num_generations"] = number.n if is_known else 4
    return make(
        model,
        reward,
        args=config(out, **settings),
        train_dataset=dataset() if data is None else data,
        **own,
        **dict(options),
    )


def refused(out, method, match, *, reward=right, options=(), **settings):
    """A trainer is refused, in one line, before its model is looked for."""
    with pytest.raises(ValueError, match=match) as error:
        trainer(out, method, model="no/such-model", reward=reward, options=options, **settings)
    assert "\n" not in str(error.value)


def trained(one):
    """The same trainer after training."""
    one.train()
    return one


def logged(one, *names):
    """The values of each name in the log, one list a name."""
    return [[row[name] for row in one.state.log_history if name in row] for name in names]


def weights(one):
    model = one.accelerator.unwrap_model(one.model)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def shaken(one, size=0.01):
    """The trainer with other weights than the reference model has."""
    one.model.train()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(size)
    return one


# A hand-made round


def hand_made_round(row_weights=None, advantages=None, seed=0):
    """7 rollouts of which 5 were chosen: one of advantage zero, one without gradient."""
    rng = np.random.default_rng(seed)
    lengths = [3, 1, 5, 2, 7, 4, 6]
    rollouts = Rollouts(
        problem=np.array(list("aaabbbb")),
        reward=np.arange(7.0),
        prompt=Ragged.of([rng.integers(4, 14, 5) for _ in lengths], np.int32),
        response=Ragged.of([rng.integers(4, 14, n) for n in lengths], np.int32),
        old_logprobs=Ragged.of([np.full(n, -2.0) for n in lengths], np.float32),
        round=np.ones(7, dtype=np.int64),
        columns={"gradient": np.arange(7) != 3, "uses": np.zeros(7, dtype=np.int64)},
    )
    if advantages is None:
        advantages = np.array([1.0, -0.5, 2.0, 0.0, -1.5])
    return Round(rollouts, np.array([0, 2, 3, 4, 6]), advantages, row_weights)


def dealt(one, steps, outcome, of_step=None):
    """A round dealt to so many micro-batches, of which all or `of_step` are an optimizer step."""
    one.args.steps_per_generation = steps
    one.args.gradient_accumulation_steps = of_step or steps
    one.current_gradient_accumulation_steps = of_step or steps
    one.driver.begin(1)
    one.driver.outcome = outcome
    one._measured = np.full((3, len(outcome.rollouts)), np.nan)
    return one.micro_batches(outcome, outcome.rollouts.take([1]))


def gradient(one, steps, outcome=None, of_step=None):
    """The gradient of a round's loss, of this process's micro-batches, flat."""
    batches = dealt(one, steps, hand_made_round() if outcome is None else outcome, of_step)
    model = one.accelerator.unwrap_model(one.model)
    model.train()  # in evaluation TRL does not divide by the number of micro-batches
    model.zero_grad()
    for batch in batches:
        one._compute_loss(model, batch).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def own_gradient(one, loss_aggregation, outcome=None, length=None, surrogate="clip"):
    """The same by this package's objective, on all chosen rows at once."""
    outcome = hand_made_round() if outcome is None else outcome
    rows = outcome.rollouts.take(outcome.rows)
    model = one.accelerator.unwrap_model(one.model)
    model.zero_grad()
    logprobs = TransformersPolicy(model, one.processing_class).logprobs(rows)
    advantages = outcome.advantages
    if isinstance(advantages, Ragged):
        advantages = advantages.padded()
    else:
        advantages = np.repeat(advantages[:, None], logprobs.shape[1], axis=1)
    factors = rows["gradient"].astype(float)
    if outcome.weights is not None:
        factors = factors * outcome.weights
    policy_loss(
        logprobs,
        logprobs.detach(),
        torch.as_tensor(advantages * factors[:, None], dtype=torch.float32),
        torch.as_tensor(rows.response.mask()),
        loss_aggregation=loss_aggregation,
        length=length or one.max_completion_length,
        groups=rows.group,
        surrogate=surrogate,
    ).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
