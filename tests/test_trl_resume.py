"""Checkpoints of the TRL trainer: a resumed run is the uninterrupted one, to the last bit."""

import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

from peft import LoraConfig
from trl_cases import SMALL, dataset, logged, same, small, trained, trainer, weights

from workbench import methods
from workbench.allocators import DynamicSampling, Knapsack
from workbench.replay import Buffer, CorrectResponses
from workbench.selectors import Scheduler
from workbench.trl import state

# Methods with memory in every slot that may have one.
REMEMBERING = {
    "known": methods.Method(
        "known",
        allocator=Knapsack(4),
        replay=CorrectResponses("direct"),
        selector=Scheduler(50, learning_rate=0.01),
    ),
    "window": methods.Method(
        "window",
        allocator=DynamicSampling(4),
        replay=Buffer(2),
        selector=Scheduler(scope="buffer", warmup=0),
    ),
}
# Methods that differ from GRPO in the loss or in the rows they keep, and remember nothing more.
LIKE_GRPO = ("gspo", "dr_grpo", "pods")
RESUMED = [name for name in methods.PAPERS if name not in LIKE_GRPO]
EVERY = {**{name: small(name) for name in RESUMED}, **REMEMBERING}


def interrupted(out, method, *, steps=4, at=2, **settings):
    """An uninterrupted run, and one that resumes after step `at`."""
    settings = {
        "data": dataset(16),
        "max_steps": steps,
        "save_strategy": "steps",
        "save_steps": at,
        **settings,
    }
    whole = trained(trainer(out, method, **settings))
    resumed = trainer(out, method, **settings)
    resumed.train(resume_from_checkpoint=str(out / f"checkpoint-{at}"))
    return whole, resumed


def measured(one, after=0):
    """The rows of the log after a step, without what depends on the clock."""
    rows = [row for row in one.state.log_history if row["step"] > after and "loss" in row]
    return [
        {name: row[name] for name in row if "time" not in name and "seconds" not in name}
        for row in rows
    ]


@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    whole, resumed = interrupted(tmp_path, EVERY[name])
    assert same(weights(whole), weights(resumed))
    assert whole.round == resumed.round == 4
    # Among them the metrics of the slots, from the first row on.
    assert measured(whole, after=2) == measured(resumed, after=2)
    assert len(measured(resumed, after=2)) == 2


@pytest.mark.parametrize(
    "method, metric",
    [
        (SMALL["ar3po"], "workbench/replay_stored"),
        (SMALL["knapsack"], "workbench/success_rate_known"),
        (SMALL["cbs"], "workbench/scheduler_score"),
    ],
)
def test_the_first_row_after_a_resume_has_the_metrics_of_the_slots(method, metric, tmp_path):
    whole, resumed = interrupted(tmp_path, method, steps=2, at=1)
    assert [metric in row for row in measured(whole)] == [True, True]
    (row,) = measured(resumed, after=1)
    assert row[metric] == measured(whole)[1][metric]


def test_a_resume_with_adapters(tmp_path):
    options = {"peft_config": LoraConfig(r=4, target_modules=r".*_proj")}
    whole, resumed = interrupted(tmp_path, SMALL["dapo"], options=options)
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_amid_a_round_has_what_was_learnt_and_changes_nothing(tmp_path):
    settings = {
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "max_steps": 3,
        "data": dataset(16),
    }
    method = REMEMBERING["known"]
    plain = trained(trainer(tmp_path / "plain", method, **settings))
    saving = {"save_strategy": "steps", "save_steps": 3}
    saved = trained(trainer(tmp_path / "saved", method, **settings, **saving))
    assert same(weights(plain), weights(saved))
    learnt = method.clone()
    numbers = state.load(str(tmp_path / "saved" / "checkpoint-3"), learnt)
    assert numbers == {"round": 2, "empty_rounds": 0}
    # The second round is amid its updates, and its rollouts are known all the same.
    tried = learnt.allocator.rates.learner.seen.sum()
    assert tried == 32
    assert saved.method.allocator.rates.learner.seen.sum() == 16


def test_the_count_of_empty_rounds_goes_on(tmp_path):
    def always(completions, **_):
        return [1.0] * len(completions)

    settings = {"reward": always, "max_completion_length": 4}
    _, resumed = interrupted(tmp_path, SMALL["grpo"], **settings)
    assert resumed._empty_rounds.in_a_row == 4
    assert resumed.first_round == 3


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    settings = {"data": dataset(16), "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    method = SMALL["ar3po"]
    trained(trainer(tmp_path, method, **settings))
    folder = tmp_path / "checkpoint-1"

    def resume(method):
        trainer(tmp_path, method, **settings).train(resume_from_checkpoint=str(folder))

    match = r"resume_from_checkpoint: .* of another method \(this one, that one\): replay: None, "
    with pytest.raises(ValueError, match=match):
        resume(method.but(replay=None))
    with pytest.raises(ValueError, match="of another method"):
        resume(None)
    (folder / state.FILE).unlink()
    match = r"workbench\.safetensors is missing, so the checkpoint was made without a method; use"
    with pytest.raises(ValueError, match=match):
        resume(method)
    resume(None)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    settings = {"data": dataset(16), "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trained(trainer(tmp_path, SMALL["ar3po"], **settings))
    path = tmp_path / "checkpoint-1" / state.FILE
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="damaged"):
        state.load(str(path.parent), SMALL["ar3po"].clone())


def test_logged_rows_are_those_of_their_round(tmp_path):
    """What slots measure is logged with the round it was measured in, not with the next one."""
    one = trained(trainer(tmp_path, SMALL["ar3po"], max_steps=3))
    stored = logged(one, "workbench/replay_stored")[0]
    assert len(stored) == 3
    counts = logged(one, "workbench/correct", "workbench/rollouts")
    correct = [share * size for share, size in zip(*counts)]
    assert stored == pytest.approx([sum(correct[: i + 1]) for i in range(3)])
