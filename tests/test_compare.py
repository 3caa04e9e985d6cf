"""Runs of any trainer: the readers of their logs, the answers, and what bad logs are told."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import trl
from scipy import stats
from trl_cases import dataset, trainer
from written_records import write

import workbench as wb
from workbench import methods
from workbench.analysis.forecast import Sigmoid
from workbench.analysis.intervals import welch
from workbench.analysis.sources import logs, one_a_run
from workbench.analysis.sources.log import Log

CBS = Path(__file__).parents[1] / "data/runs/cbs"


def csv(path, values, steps=None, **columns):
    steps = range(1, len(values) + 1) if steps is None else steps
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame({"step": steps, "reward": values, **columns})
    table.to_csv(path, index=False, na_rep="nan")
    return path


def verl(path, values):
    """The format of verl's file logger: a step and its metrics a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "data": {"critic/score/mean": value, "actor/lr": 1e-6}}
        for step, value in enumerate(values, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def console(path, values):
    """What verl prints, with the longest of its usual names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = "val-core/openai/gsm8k/reward/mean@1"
    path.write_text("".join(f"step:{step} - {name}:{v}\n" for step, v in enumerate(values)))
    return path


def arm(folder, name, ends, seeds=None, write=csv, suffix="csv"):
    """Runs that rise in a straight line to their ends."""
    seeds = range(len(ends)) if seeds is None else seeds
    for seed, end in zip(seeds, ends):
        write(folder / name / f"seed-{seed}.{suffix}", np.linspace(0.1, end, 11))
    return folder / name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One tiny run by TRL, with TensorBoard events and completions."""
    folder = tmp_path_factory.mktemp("trl") / "seed-5"
    one = trainer(
        folder,
        make=trl.GRPOTrainer,
        data=dataset(8, levels=(2, 3)),
        max_steps=4,
        seed=5,
        report_to=["tensorboard"],
        log_completions=True,
        num_completions_to_print=0,
    )
    one.train()
    one.save_state()
    return folder, [row["reward"] for row in one.state.log_history if "reward" in row]


# Readers


def test_a_directory_of_trl_gives_rewards_rollouts_and_the_rate(trained):
    folder, rewards = trained
    [log] = logs(folder)
    assert [row["reward"] for row in log.rows] == rewards
    assert [row["rollouts"] for row in log.rows] == [16, 32, 48, 64]
    assert (log.seed, log.rate) == (5, 1e-3)


@pytest.mark.parametrize(
    "settings, expected",
    [
        # TRL's table keeps the 16 latest completions of the 32.
        ({"method": methods.pods(8, 4)}, [0, 32, 64, 64, 96, 128, 128]),
        ({"steps_per_generation": 4}, [0, 32, 32, 32, 64, 64, 64]),
        ({"logging_steps": 2}, None),
    ],
    ids=["method", "reused", "seldom"],
)
@pytest.mark.long
def test_rollouts_of_trl_are_all_that_were_sampled(settings, expected, tmp_path):
    one = trainer(
        tmp_path,
        data=dataset(16, levels=(2, 3)),
        options={"eval_dataset": dataset(4)},
        max_steps=4,
        log_completions=True,
        num_completions_to_print=0,
        eval_strategy="steps",
        eval_steps=2,
        eval_on_start=True,
        **settings,
    )
    one.train()
    one.save_state()
    [log] = logs(tmp_path)
    assert [row.get("rollouts") for row in log.rows] == (expected or [None] * 5)


def test_the_order_of_columns_does_not_choose_the_score(tmp_path):
    # As TRL logs them to W&B, which writes them in another order in every run.
    wanted = {"eval/reward_std": 0.5, "eval/rewards/right/mean": 0.2, "eval/reward": 0.7}
    places = {}
    for arm, order in (("a", list(wanted)), ("b", [*wanted][::-1]), ("c", [*wanted][1:])):
        rows = [{"_step": step, **{name: wanted[name] + step for name in order}} for step in (0, 1)]
        places[arm] = tmp_path / f"{arm}.jsonl"
        places[arm].write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = wb.compare(places)
    assert found.y == "eval/reward"
    assert [found.curves[arm][0].scores.tolist() for arm in "abc"] == [[0.7, 1.7]] * 3
    std = tmp_path / "std.jsonl"
    std.write_text('{"step": 0, "eval/reward_std": 0.1}\n{"step": 1, "eval/reward_std": 0.1}\n')
    with pytest.raises(ValueError, match="y: no usual name that all runs have"):
        wb.compare({"a": places["a"], "std": std})


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "parquet"])
def test_an_empty_cell_of_a_table_is_no_logged_value(ending, tmp_path):
    # As wandb exports a history, in which rows of training have no score of the evaluation.
    table = pd.DataFrame(
        {"step": [1, 2, 2], "lr": [0.5, 0.5, None], "loss": [2, 1, None], "eval/reward": [None] * 3}
    )
    table.loc[[0, 2], "eval/reward"] = [0.25, 0.5]
    path = tmp_path / f"a.{ending}"
    write = {"json": table.to_json, "parquet": table.to_parquet}
    separator = "\t" if ending == "tsv" else ","
    write.get(ending, lambda path: table.to_csv(path, sep=separator, index=False))(path)
    text = str(
        wb.compare(
            {"a": path, "b": csv(tmp_path / "b.csv", [0.1, 0.2])},
            y={"a": "eval/reward", "b": "reward"},
        )
    )
    assert "no finite number" not in text and "a: 0.5" in text


def test_completions_alone_say_the_rewards(trained, tmp_path):
    folder, rewards = trained
    shutil.copytree(folder / "completions", tmp_path / "run" / "completions")
    [log] = logs(tmp_path / "run")
    assert [row["reward"] for row in log.rows] == pytest.approx(rewards)


def test_events_of_tensorboard_say_what_the_state_says(trained, tmp_path):
    folder, rewards = trained
    [events] = folder.rglob("*.tfevents.*")
    [log] = logs(events.parent)
    assert log.source == "TensorBoard events"
    logged = [row["train/reward"] for row in log.rows if "train/reward" in row]
    assert logged == pytest.approx(rewards)
    table = wb.compare(
        {"state": folder, "events": events.parent},
        x="step",
        y={"state": "reward", "events": "train/reward"},
    ).table
    assert table["difference"].tolist() == pytest.approx([0.0], abs=1e-6)
    # A tag is the cost of another of the same step, whichever was written first.
    names = ("num_tokens", "reward")
    state = [[row[name] for name in names] for row in logs(folder)[0].rows]
    pairs = [[row[f"train/{name}"] for name in names] for row in log.rows if "train/reward" in row]
    assert np.allclose(pairs, state)


def test_an_unfinished_run_is_said_to_be_going_on(trained, tmp_path):
    folder, _ = trained
    shutil.copytree(folder, tmp_path / "run")
    state = json.loads((folder / "trainer_state.json").read_text())
    state["max_steps"] = 400
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps(state))
    [log] = logs(tmp_path / "run")
    assert "at step 4 of 400" in log.notes[0]


def test_an_offline_run_of_wandb(tmp_path):
    wandb = pytest.importorskip("wandb")
    run = wandb.init(mode="offline", dir=tmp_path, config={"seed": 3, "learning_rate": 1e-6})
    for step in range(6):
        run.log({"reward": step / 10})
    run.finish()
    [file] = tmp_path.rglob("*.wandb")
    [log] = logs(file.parent)
    assert [row["reward"] for row in log.rows] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert (log.seed, log.rate, log.run) == (3, 1e-6, run.id)
    cut = tmp_path / "cut.wandb"
    cut.write_bytes(file.read_bytes()[:-300])
    assert "it has no end" in logs(cut)[0].notes[0]


def test_the_logs_of_a_run_that_was_resumed_are_one_run():
    """W&B begins another folder, which counted as another seed and ended where the first ended."""

    def log(name, steps, seed=0, run="abc"):
        rows = [{"step": step} for step in steps]
        return Log(Path(name), "W&B run", rows, seed, notes=[f"{name} has an end"], run=run)

    parts = [log("offline-run-2-abc", [5, 6]), log("offline-run-1-abc", [4, 5])]
    others = [log("b", [1], seed=1), log("c", [2], run=None), log("d", [3], run=None)]
    joined, *rest = one_a_run([*parts, *others])
    assert rest == others
    assert [row["step"] for row in joined.rows] == [4, 5, 5, 6]
    assert joined.path == Path("offline-run-1-abc")
    assert joined.notes == ["offline-run-2-abc has an end", "offline-run-2-abc goes on with it"]


def test_json_lines_may_hold_a_byte_order_mark_and_every_character(tmp_path):
    """verl dumps responses as they are: a model may write a separator of lines of Unicode."""
    for arm in "ab":
        (tmp_path / arm).mkdir()
        for step in (1, 2):
            row = {"output": "one\u2028two\x85three", "score": step / 2}
            text = json.dumps(row, ensure_ascii=False) + "\r\n"
            (tmp_path / arm / f"{step}.jsonl").write_text(text * 2, "utf-8-sig", newline="")
    found = wb.compare([tmp_path / "a", tmp_path / "b"])
    assert found.y == "score"
    assert found.curves["a"][0].scores.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_tables_of_step_and_value(tmp_path, kind):
    table = pd.DataFrame({"global_step": [1, 2, 3], "eval/accuracy": [0.1, 0.2, 0.3]})
    path = tmp_path / f"run-seed_4.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    elif kind.startswith("json"):
        table.to_json(path, orient="records", lines=kind == "jsonl")
    else:
        table.to_csv(path, sep="\t" if kind == "tsv" else ",", index=False)
    [log] = logs(path)
    assert (log.columns, log.seed) == (["global_step", "eval/accuracy"], 4)
    assert [row["eval/accuracy"] for row in log.rows] == [0.1, 0.2, 0.3]


def test_metrics_of_verl_and_a_last_line_that_is_being_written(tmp_path):
    path = verl(tmp_path / "a.jsonl", [0.1, 0.2, 0.3])
    path.write_text(path.read_text() + '{"step": 4, "da')
    [log] = logs(path)
    assert [row["critic/score/mean"] for row in log.rows] == [0.1, 0.2, 0.3]
    assert log.rate == 1e-6
    assert "unfinished" in log.notes[0]


def test_several_logs_of_one_run_are_no_seeds(tmp_path):
    """A run of verl leaves its console, its metrics and more side by side in one folder."""
    console(tmp_path / "run" / "console.log", [0.1, 0.2])
    csv(tmp_path / "run" / "gsm8k.csv", [0.1, 0.2])
    message = r"console.log .*, gsm8k.csv .* are logs of different kinds.* name one of them$"
    with pytest.raises(ValueError, match=message):
        logs(tmp_path / "run")
    # W&B has a link to the latest run beside the run.
    csv(tmp_path / "runs" / "seed-3.csv", [0.1, 0.2])
    (tmp_path / "runs" / "latest.csv").symlink_to(tmp_path / "runs" / "seed-3.csv")
    [log] = logs(tmp_path / "runs")
    assert log.seed == 3


def test_the_console_and_the_dumps_of_verl(tmp_path):
    printed = tmp_path / "run-seed-2.log"
    printed.write_text(
        "(TaskRunner pid=7) step:0 - val-core/gsm8k/acc/mean@1:np.float64(0.25)\n"
        "(TaskRunner pid=7) some other line - with:colons\n"
        "(TaskRunner pid=7) step:1 - critic/score/mean:0.125 - actor/lr:1e-06 - a/kl:nan\n"
        "step:2 - critic/score/mean:-0.5 - training/global_step:2\n"
    )
    [log] = logs(printed)
    assert (log.seed, log.rate) == (2, 1e-6)
    assert log.rows[0] == {"step": 0, "val-core/gsm8k/acc/mean@1": 0.25}
    assert [row.get("critic/score/mean") for row in log.rows] == [None, 0.125, -0.5]
    for step in (9, 10):
        rows = [
            {"input": "1+1=", "output": "2", "gts": "2", "score": score, "acc": score > 0}
            for score in (step - 9, 1.0)
        ]
        (tmp_path / "dumps").mkdir(exist_ok=True)
        (tmp_path / "dumps" / f"{step}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    [log] = logs(tmp_path / "dumps")
    assert [(row["step"], row["score"], row["acc"]) for row in log.rows] == [
        (9, 0.5, 0.5),
        (10, 1.0, 1.0),
    ]
    (tmp_path / "notes.log").write_text("nothing of a step: here")
    with pytest.raises(ValueError, match="no log of a run is there"):
        logs(tmp_path / "notes.log")


def test_events_as_openrlhf_writes_them(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for arm_name, gain in (("a", 0.0), ("b", 0.1)):
        for seed in range(3):
            with SummaryWriter(tmp_path / arm_name / f"seed-{seed}") as writer:
                for step in range(1, 7):
                    score = gain + step / 10 + seed / 100
                    writer.add_scalar("train/reward", score, step)
                    writer.add_scalar("train/actor_lr", 1e-6, step)
                    writer.add_scalar("eval/eval_math_pass1", score, step)
    found = wb.compare({name: tmp_path / name for name in "ab"})
    assert (found.x, found.y) == ("step", "eval/eval_math_pass1")
    [row] = found.table.to_dict("records")
    assert row["difference"] == pytest.approx(0.1) and row["learning_rate"] == "1e-06"
    assert wb.compare([tmp_path / "a", tmp_path / "b"], y="train/reward").y == "train/reward"


def test_rows_as_openrlhf_logs_them_to_wandb(tmp_path):
    """Its evaluations have a step of their own, and W&B counts every call in `_step`."""
    for arm_name, gain, between in (("a", 0.0, 2), ("b", 0.1, 4)):
        for seed in range(3):
            rows = []
            for step in range(1, 13):
                score = gain + step / 20 + seed / 100
                rows.append({"train/generated_samples": {"_type": "table"}})
                rows.append({"train/global_step": step, "train/reward": score})
                if step % between == 0:
                    rows.append({"eval/global_step": step, "eval/eval_math_pass1": score})
            lines = [json.dumps({"_step": number} | row) for number, row in enumerate(rows)]
            (tmp_path / f"{arm_name}-{seed}.jsonl").write_text("\n".join(lines))
    found = wb.compare({a: [tmp_path / f"{a}-{seed}.jsonl" for seed in range(3)] for a in "ab"})
    assert (found.x, found.y) == ("step", "eval/eval_math_pass1")
    assert found.table["difference"].tolist() == pytest.approx([0.1])


@pytest.mark.slow
def test_records_agree_with_the_comparison_of_records():
    from workbench.analysis import comparisons

    groups = comparisons.load_all(CBS / "grpo-full", CBS / "grpo-round")
    expected = comparisons.at_budget(groups, "rollouts", baseline="grpo-full").loc["grpo-round"]
    found = wb.compare({name: CBS / name for name in groups}, baseline="grpo-full")
    assert (found.x, found.y) == ("rollouts", "accuracy")
    [row] = found.table.to_dict("records")
    assert row["paired"] and row["seeds"] == expected["pairs"]
    names = {"difference": "difference", "difference_low": "low", "difference_high": "high"}
    for mine, theirs in names.items():
        assert row[mine] == pytest.approx(expected[theirs])


def test_records_with_other_held_out_problems_are_refused_as_by_the_comparison_of_records(tmp_path):
    for seed, end in enumerate((0.5, 0.75)):
        for label, problems in {"a": "pq", "b": "qp", "hard": "rs"}.items():
            reward = {"reward": [0.1, end]}
            scores = ((0, 0.25), (2, end))
            write(tmp_path, label, seed, scores=scores, problems=problems, columns=reward)
    runs = {label: tmp_path / label for label in ("a", "b", "hard")}
    for refused in (runs, {label: runs[label] for label in ("hard", "a")}):
        with pytest.raises(ValueError, match=r"seed-0: other held-out problems than .*seed-0 has$"):
            wb.compare(refused)
    with pytest.raises(ValueError, match="other held-out problems"):
        wb.seeds_needed([runs["a"], runs["hard"]], y="greedy")
    # Rewards are those of training, and other trainers do not say what their problems are.
    assert wb.compare(runs, y="reward").y == "reward"
    logged = csv(tmp_path / "theirs.csv", [0.1, 0.2], steps=[0, 9], accuracy=[0.1, 0.2])
    theirs = {"a": runs["a"], "theirs": logged, "b": runs["b"]}
    assert wb.compare(theirs, x={"a": "round", "theirs": "step", "b": "round"}).y == "accuracy"


# Answers


def test_unpaired_arms_have_the_interval_of_welch(tmp_path):
    a, b = [0.5, 0.55, 0.6, 0.52], [0.7, 0.8, 0.72]
    found = wb.compare({"a": arm(tmp_path, "a", a), "b": arm(tmp_path, "b", b, (7, 8, 9))})
    expected = stats.ttest_ind(b, a, equal_var=False)
    low, high = expected.confidence_interval()
    [row] = found.table.to_dict("records")
    assert not row["paired"] and row["verdict"] == "better"
    assert [row["p"], row["difference_low"], row["difference_high"]] == pytest.approx(
        [expected.pvalue, low, high]
    )
    assert "3 and 4 runs, Welch" in row["sentence"]
    ratio = welch(b, a, scale="ratio")
    by_logs = stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    assert ratio.p == pytest.approx(by_logs.pvalue)
    assert [ratio.low, ratio.high] == pytest.approx(np.exp(by_logs.confidence_interval()))


def test_a_run_that_stopped_leaves_its_end_open():
    assert welch([10, 11, 12], [1, 1.1, 1.2], scale="ratio", stopped=(1, 0)).high == np.inf
    assert welch([10, 11, 12], [1, 1.1, 1.2], scale="ratio", stopped=(1, 0)).p < 0.05
    assert welch([10, 11, 12], [1, 1.1, 1.2], scale="ratio", stopped=(0, 1)).p == 1


def test_seeds_that_both_have_are_paired_and_holm_counts_the_arms(tmp_path):
    base = np.array([0.5, 0.6, 0.7, 0.8])
    arms = {
        "base": arm(tmp_path, "base", base),
        "up": arm(tmp_path, "up", base + np.array([0.05, 0.06, 0.05, 0.06])),
        "none": arm(tmp_path, "none", base + np.array([0.05, -0.05, 0.04, -0.05])),
    }
    table = wb.compare(arms).table.set_index("arm")
    assert table["paired"].all()
    assert table["verdict"].tolist() == ["better", "open"]
    assert table.loc["up", "p_holm"] == pytest.approx(2 * table.loc["up", "p"])
    assert "after correction for 2 arms" in table.loc["up", "sentence"]


def test_the_cost_to_a_target_decides_where_there_is_one(tmp_path):
    slow = arm(tmp_path, "slow", [0.6, 0.61, 0.62, 0.6])
    fast = arm(tmp_path, "fast", [1.1, 1.13, 1.12, 1.1])
    found = wb.compare({"slow": slow, "fast": fast}, target=0.5)
    [row] = found.table.to_dict("records")
    assert row["verdict"] == "better" and row["high"] < 0.6
    assert row["sentence"].startswith("fast needs .5")
    assert "of slow's steps to reach 0.5 of reward (4 pairs of seeds)" in row["sentence"]
    with pytest.raises(ValueError, match=r"target=0.05: a run of reward begins there already"):
        wb.compare({"slow": slow, "fast": fast}, target=0.05)


def test_less_of_a_loss_is_better(tmp_path):
    arms = {"a": [0.5, 0.52, 0.51], "b": [0.3, 0.31, 0.3]}
    for name, ends in arms.items():
        for seed, end in enumerate(ends):
            csv(tmp_path / name / f"seed-{seed}.csv", [1] * 5, eval_loss=np.linspace(2, end, 5))
    runs = {name: tmp_path / name for name in arms}
    found = wb.compare(runs, y="eval_loss", target=1.0)
    assert found.table["verdict"].tolist() == ["better"]
    assert "Less of eval_loss counts as better." in found.notes
    turned = wb.compare(runs, y="eval_loss", less_is_better=False)
    assert turned.table["verdict"].tolist() == ["worse"]


def test_one_run_each_says_nothing_and_how_many_seeds_would(tmp_path):
    runs = {name: csv(tmp_path / f"{name}.csv", [0.1, end]) for name, end in (("a", 1), ("b", 9))}
    [row] = wb.compare(runs).table.to_dict("records")
    assert row["verdict"] == "open" and np.isnan(row["p"])
    assert "a have one run each: nothing can be said" in row["sentence"]
    assert "seeds of each find a change of 10 %" in row["sentence"]


def test_seeds_needed_find_the_change_four_times_out_of_five(tmp_path):
    ends = [0.5, 0.55, 0.6, 0.52, 0.58]
    table = wb.seeds_needed(arm(tmp_path, "a", ends))
    spread = np.std(ends, ddof=1) / np.mean(ends)
    assert table["spread"].tolist() == pytest.approx([spread] * 3)
    assert table["seeds"].is_monotonic_decreasing and table.index.tolist() == [5, 10, 20]
    n = int(table.loc[10, "seeds"])
    rng = np.random.default_rng(0)
    a, b = rng.normal([[1], [1.1]], spread, (4000, 2, n)).transpose(1, 0, 2)
    found = (stats.ttest_ind(b, a, axis=1, equal_var=False).pvalue < 0.05).mean()
    assert 0.78 < found < 0.93
    with pytest.raises(ValueError, match="a spread needs at least two"):
        wb.seeds_needed(csv(tmp_path / "one.csv", [0.1, 0.2]))


def test_a_mean_next_to_nothing_needs_very_many_seeds(tmp_path):
    runs = [csv(tmp_path / f"{end}.csv", [0.0, end]) for end in (-1.0, 1.0, 1e-6)]
    table = wb.seeds_needed(runs, changes=[10])
    spread = table["spread"].iloc[0]
    assert table["seeds"].iloc[0] == pytest.approx(2 * 7.8 * (10 * spread) ** 2)


def test_held_out_accuracies_are_forecast_where_they_begin_before_training(tmp_path):
    steps = np.arange(0, 61, 10)
    ceilings = {"a": 0.9, "b": 0.6}
    for name, ceiling in ceilings.items():
        for seed in range(4):
            scores = Sigmoid(0.2, ceiling, 30, 2).at(steps) + seed / 500
            csv(tmp_path / name / f"seed-{seed}.csv", [1] * 7, steps, accuracy=scores)
    found = wb.compare({name: tmp_path / name for name in ceilings}, y="accuracy")
    [row] = found.table.to_dict("records")
    for of, name in (("", "b"), ("baseline_", "a")):
        truth = Sigmoid(0.2, ceilings[name], 30, 2).at(120)
        assert row[f"{of}forecast_low"] < truth < row[f"{of}forecast_high"]
        assert row[f"{of}ceiling"] == pytest.approx(ceilings[name], abs=0.03)
    assert "at step 120 it would stand at" in row["sentence"] and "ceilings" in row["sentence"]
    later = {n: arm(tmp_path / "later", n, [0.5, 0.6]) for n in ("c", "d")}
    refused = wb.compare(later)
    assert np.isnan(refused.table["forecast"]).all()
    assert any("an evaluation before the first round is needed" in note for note in refused.notes)


# What logs have, and what is said of it


def test_what_was_mended_is_said(tmp_path):
    restarted = csv(tmp_path / "a.csv", [0.1, 0.2, 0.9, 0.2, 0.3], steps=[1, 2, 3, 2, 3])
    broken = csv(tmp_path / "b.csv", [0.1, np.nan, 0.3, np.inf], steps=[2, 4, 6, 8])
    found = wb.compare({"a": restarted, "b": broken})
    text = str(found)
    assert found.curves["a"][0].scores.tolist() == [0.1, 0.2, 0.3]
    assert found.budget == 3
    for said in (
        *("step goes back 1 times", "2 of 4 values of reward are no finite number"),
        *("the last one among them", "Runs logged every 1, 4 step", "where", "a.csv ended"),
        *("tuned alike", "Steps count as equal"),
    ):
        assert said in text
    assert "tuned alike" not in str(wb.compare({"a": restarted, "b": broken}, tuned=True))
    assert "means of 2 logged values" in str(wb.compare([restarted, broken], smooth=2))
    assert "reward may be that of a single batch; smooth=5" in str(wb.compare([restarted, broken]))


def test_no_ratio_is_said_where_no_run_of_the_one_and_not_all_of_the_other_arrived(tmp_path):
    low = arm(tmp_path, "low", [0.4, 0.41, 0.42])
    some = arm(tmp_path, "some", [0.6, 0.61, 0.43])
    [row] = wb.compare({"some": some, "low": low}, target=0.5).table.to_dict("records")
    assert row["sentence"].startswith("low: 0 of 3 reached 0.5 of reward, of some 2 of 3 (3 pairs")
    assert "needs" not in row["sentence"] and row["verdict"] == "open"
    # Where all of the others arrived, the ratio is a bound.
    all_of_them = arm(tmp_path, "all", [0.6, 0.61, 0.62])
    text = str(wb.compare({"all": all_of_them, "low": low}, target=0.5))
    assert "low needs at least 1.2" in text and "0 of 3 reached it, of all 3 of 3" in text


def test_runs_without_any_spread_decide_nothing(tmp_path):
    arms = {name: arm(tmp_path, name, [end] * 3) for name, end in (("a", 0.5), ("b", 0.6))}
    found = wb.compare(arms, target=0.4)
    [row] = found.table.to_dict("records")
    # Student's p of three equal differences would be 0, and the verdict "better".
    assert row["difference"] == pytest.approx(0.1)
    assert row["verdict"] == "open"
    assert np.isnan([row["p"], row["low"], row["high"], row["difference_low"]]).all()
    assert "no error is known" in row["sentence"]
    copies = [note for note in found.notes if "has the same scores as" in note]
    assert len(copies) == 4


def test_a_cost_without_any_spread_decides_nothing(tmp_path):
    ends = np.array([0.6, 0.62, 0.65, 0.7])
    for name, halfway in (("a", 0.3), ("b", 0.4)):
        for seed, end in enumerate(ends):
            csv(tmp_path / name / f"seed-{seed}.csv", [0.1, halfway, end + halfway * end])
    [row] = wb.compare({n: tmp_path / n for n in "ab"}, target=0.25).table.to_dict("records")
    assert row["ratio"] == pytest.approx(1.5 / 1.75)
    assert row["verdict"] == "open"
    assert "without any spread over runs no error is known" in row["sentence"]


def test_a_seed_that_an_arm_has_twice_is_said(tmp_path):
    mine = [csv(tmp_path / f"{n}-seed-0.csv", [0.1, 0.3 + n / 10]) for n in range(2)]
    found = wb.compare({"mine": mine, "theirs": arm(tmp_path, "theirs", [0.4, 0.5])})
    assert "mine has 2 runs of seed 0, which count as independent." in found.notes


def test_seeds_may_be_texts_and_belong_to_one_run(tmp_path):
    runs = {label: arm(tmp_path, label, [0.4, 0.5, 0.7], seeds="xyz") for label in "ab"}
    paths = {label: sorted(folder.iterdir()) for label, folder in runs.items()}
    as_texts = dict(zip("012", paths["a"]))
    found = wb.compare({"a": as_texts, "b": dict(enumerate(paths["b"]))})
    assert found.table["paired"].tolist() == [True]
    with pytest.raises(ValueError, match="has 3 runs, so 0 is no seed"):
        wb.compare({"a": {0: runs["a"]}, "b": runs["b"]})
    with pytest.raises(ValueError, match="a seed of a='x'"):
        wb.compare({"a": {"x": paths["a"][0]}, "b": runs["b"]})


def long_table(path, ends, seeds=None, order="seed"):
    """Runs in one table, with their seeds in a column."""
    rows = [
        {"seed": seed, "step": step, "reward": value}
        for seed, end in zip(seeds or range(len(ends)), ends)
        for step, value in enumerate(np.linspace(0.1, end, 11))
    ]
    pd.DataFrame(rows).sort_values(order, kind="stable").to_csv(path, index=False)
    return path


@pytest.mark.parametrize("order", ["seed", "step"])
def test_a_table_with_seeds_in_a_column_is_as_many_runs(order, tmp_path):
    ends = {"b": [0.5, 0.52, 0.55, 0.6], "a": [0.55, 0.58, 0.61, 0.64]}
    found = wb.compare({n: long_table(tmp_path / f"{n}.csv", ends[n], order=order) for n in "ba"})
    apart = wb.compare({n: arm(tmp_path, n, ends[n]) for n in "ba"})
    assert [curve.seed for curve in found.curves["a"]] == [0, 1, 2, 3]
    assert found.table["paired"].tolist() == [True] and found.table["seeds"].tolist() == [4]
    same = ["difference", "difference_low", "difference_high", "p", "verdict"]
    pd.testing.assert_frame_equal(found.table[same], apart.table[same])
    assert not any("goes back" in note for note in found.notes)


def test_a_column_seed_says_the_seed_of_a_run_or_that_there_are_several(tmp_path):
    # Also where the name says another one, and where rows of another kind have none.
    named = long_table(tmp_path / "a-seed-5.csv", [0.5], seeds=[3])
    rows = tmp_path / "b.jsonl"
    rows.write_text('{"seed": 4}\n{"step": 0, "reward": 0.1}\n{"step": 1, "reward": 0.2}\n')
    assert [logs(path)[0].seed for path in (named, rows)] == [3, 4]
    # Neither a text nor a number that is drawn for every step is that of a run.
    for values in (["x"] * 3, [7.5, 1, 2], [[1], [1], [2]]):
        lines = [{"seed": seed, "step": i, "reward": 0.1} for i, seed in enumerate(values)]
        rows.write_text("\n".join(map(json.dumps, lines)))
        assert [log.seed for log in logs(rows)] == [None]
    several = [long_table(tmp_path / f"{name}.csv", [0.5, 0.6]) for name in "cd"]
    with pytest.raises(ValueError, match=r"c\.csv is given twice"):
        wb.compare({"c": several[0], "d": several})
    with pytest.raises(ValueError, match="has 2 runs, so 0 is no seed"):
        wb.compare({"c": {0: several[0]}, "d": several[1]})
    several[0].write_text(several[0].read_text().replace("\n1,", "\n,"))
    assert len(logs(several[0])) == 1
    several[1].write_text(several[1].read_text().replace("\n1,", "\n1.5,"))
    with pytest.raises(ValueError, match=r"d\.csv: its column seed has .*1\.5.* every row"):
        logs(several[1])


@pytest.mark.parametrize(
    "place, seed",
    [
        ("Qwen2.5-0.5B-GRPO-seed-3/trainer_state.json", 3),
        ("qwen2.5-s4/metrics.jsonl", 4),
        ("Qwen2.5-0.5B/metrics.jsonl", None),
        ("seed-5/a-seed-6.csv", 6),
        ("a/qwen2.5-seed-7.csv", 7),
        ("seed-8/run/metrics.jsonl", None),
    ],
)
def test_a_seed_is_that_of_the_file_or_of_its_folder(place, seed, tmp_path):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    rows = [{"step": step, "reward": 0.1} for step in range(3)]
    state = {"global_step": 2, "max_steps": 2, "log_history": rows}
    texts = {".json": json.dumps(state), ".csv": pd.DataFrame(rows).to_csv(index=False)}
    path.write_text(texts.get(path.suffix, "\n".join(map(json.dumps, rows))))
    assert [log.seed for log in logs(path)] == [seed]
    if path.suffix != ".csv":
        assert [log.seed for log in logs(path.parent)] == [seed]


def test_rows_of_responses_and_costs_of_single_steps_are_refused(tmp_path):
    good = arm(tmp_path, "good", [0.4, 0.5])
    rng = np.random.default_rng(0)
    responses = csv(tmp_path / "responses.csv", rng.random(40), np.repeat(range(10), 4))
    with pytest.raises(ValueError, match="'step' goes back 0 times and stands still 30 times"):
        wb.compare({"good": good, "bad": responses})
    turned = csv(tmp_path / "turned.csv", [0.3, 0.2, 0.1], [3, 2, 1])
    with pytest.raises(ValueError, match="'step' goes back 2 times"):
        wb.compare({"good": good, "bad": turned})
    # The rounds of a record have the rollouts of each round.
    rounds = {name: tmp_path / f"{name}.csv" for name in ("one", "two")}
    for path in rounds.values():
        csv(path, rng.random(11), rollouts=rng.integers(200, 256, 11))
    with pytest.raises(ValueError, match=r"'rollouts' goes back .* costs added up"):
        wb.compare(rounds)
    twice = csv(tmp_path / "twice.csv", [0.1, 0.2, 0.3, 0.4], [1, 2, 2, 3])
    assert "1 values of reward have the step of a later one" in str(wb.compare([good, twice]))


def test_bad_runs_are_one_sentence(tmp_path):
    good = csv(tmp_path / "good.csv", [0.1, 0.2])
    other = csv(tmp_path / "other.csv", [0.1, 0.2]).rename(tmp_path / "x.csv")
    other.write_text("step,mean_return\n1,0.1\n2,0.2\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    header = tmp_path / "header.csv"
    header.write_text("step,reward\n")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 nothing")
    half = verl(tmp_path / "half.jsonl", [0.1, 0.2])
    half.write_text("{" + half.read_text())
    state = tmp_path / "run" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text('{"global_step": 3')
    note = tmp_path / "note.txt"
    note.write_text("hello")
    for bad, message in (
        (other, "no usual name that all runs have"),
        (empty, "the log is empty"),
        (header, "the log is empty"),
        (damaged, "damaged, it cannot be read as table"),
        (half, "line 1 is no JSON object"),
        (state.parent, "damaged, it cannot be read as TRL"),
        (note, "no log of a run is there"),
        (tmp_path / "none", "there is no such file or directory"),
        (csv(tmp_path / "nan.csv", [np.nan, np.nan]), "0 finite values of 'reward'"),
        (csv(tmp_path / "late.csv", [0.1, 0.2], steps=[7, 8]), "before another run began"),
        (good, "given twice"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            wb.compare({"good": good, "bad": bad})
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"y='rewards'.*did you mean 'reward'"):
        wb.compare({"good": good, "bad": other}, y="rewards")
    with pytest.raises(ValueError, match="y: it names no column of bad"):
        wb.compare({"good": good, "bad": other}, y={"good": "reward"})
    with pytest.raises(ValueError, match="at least two arms"):
        wb.compare({"good": good})
    for runs in (None, {"good": good, "bad": 3}, {"good": good, "bad": pd.read_csv(good)}):
        with pytest.raises(ValueError, match=r"^runs.* needed$"):
            wb.compare(runs)


def test_numbers_that_a_program_wrote_as_texts_are_numbers(tmp_path):
    rows = [{"step": step, "reward": value} for step, value in enumerate(["0.1", 0.2, "NaN"])]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = wb.compare({"a": path, "b": csv(tmp_path / "b.csv", [0.1, 0.2], [0, 1])})
    assert found.curves["a"][0].scores.tolist() == [0.1, 0.2]
    assert "1 of 3 values of reward are no finite number" in str(found)


def test_percent_and_shares_are_asked_about(tmp_path):
    arms = {
        "shares": arm(tmp_path, "shares", [0.4, 0.5]),
        "percent": arm(tmp_path, "percent", [40, 50]),
    }
    note = "Scores of percent reach 50, those of shares 0.5: are they in one unit?"
    assert note in wb.compare(arms).notes

    # A weak model may have few percent.
    few = arm(tmp_path, "few", [3, 4])
    for folder in (arms["shares"], few):
        for file in folder.iterdir():
            file.write_text(file.read_text().replace("reward", "eval/acc"))
    notes = str(wb.compare({"shares": arms["shares"], "few": few}, y="eval/acc").notes)
    assert "Scores of few reach 4, those of shares 0.5" in notes


def test_the_round_may_be_the_cost(tmp_path):
    runs = {
        name: arm(tmp_path, name, ends) for name, ends in (("a", [0.4, 0.5]), ("b", [0.6, 0.8]))
    }
    by_step = wb.compare(runs, target=0.3)
    for folder in runs.values():
        for file in folder.iterdir():
            file.write_text(file.read_text().replace("step", "round"))
    by_round = wb.compare(runs, target=0.3, x="round")
    numbers = ["ratio", "low", "high", "difference", "p"]
    pd.testing.assert_frame_equal(by_round.table[numbers], by_step.table[numbers])


def test_an_arm_that_is_logged_seldom_does_not_look_slow(tmp_path):
    """Between two logged values a score is linear, below a curve that bends."""
    rates = np.linspace(56, 64, 8)
    of_both = (rates, rates + np.tile([0.5, -0.5], 4))
    for name, every, of_arm in zip(("often", "seldom"), (10, 100), of_both):
        for seed, rate in enumerate(of_arm):
            steps = np.arange(0, 301, every)
            scores = 0.05 + 0.8 * (1 - np.exp(-steps / rate))
            csv(tmp_path / name / f"seed-{seed}.csv", scores, steps)
    runs = {name: tmp_path / name for name in ("often", "seldom")}
    for baseline in runs:
        [row] = wb.compare(runs, target=0.5, baseline=baseline).table.to_dict("records")
        assert row["verdict"] == "alike" and row["ratio"] == pytest.approx(1, abs=0.01)
    # Its score is not read between two of its values either.
    for file in runs["often"].iterdir():
        pd.read_csv(file).iloc[:16].to_csv(file, index=False)
    found = wb.compare(runs)
    assert found.budget == 100 and "step 100, the last that" in str(found)
    assert found.table["verdict"].tolist() == ["open"]
    # Beyond the end of the one that is logged seldom, and where they share no step, all count.
    short = csv(tmp_path / "short.csv", [0.05, 0.1], [0, 15])
    far = csv(tmp_path / "far.csv", [0.05, 0.1, 0.2, 0.6], [0, 5, 20, 30])
    [row] = wb.compare({"short": short, "far": far}, target=0.4).table.to_dict("records")
    assert row["ratio"] == pytest.approx(25 / 15)


def test_a_table_that_was_saved_with_its_index_has_it_as_columns(tmp_path):
    table = pd.DataFrame({"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3]})
    table.set_index("step").to_parquet(tmp_path / "a.parquet")
    levels = pd.MultiIndex.from_tuples([("step", ""), ("reward", "mean")])
    table.set_axis(levels, axis=1).to_parquet(tmp_path / "b.parquet")
    [a], [b] = logs(tmp_path / "a.parquet"), logs(tmp_path / "b.parquet")
    assert a.columns == ["step", "reward"]
    assert b.columns == ["('step', '')", "('reward', 'mean')"]
    y = {"a": "reward", "b": b.columns[1]}
    x = {"a": "step", "b": b.columns[0]}
    assert wb.compare({"a": a.path, "b": b.path}, x=x, y=y).budget == 3


# Pictures


@pytest.mark.slow
@pytest.mark.parametrize("source", ["csv", "verl", "console", "record"])
def test_a_figure_for_a_paper_has_nothing_cut_off(tmp_path, source):
    if source == "record":
        runs = {name: CBS / name for name in ("grpo-full", "grpo-round")}
    else:
        writers = {"csv": (csv, "csv"), "verl": (verl, "jsonl"), "console": (console, "log")}
        write, suffix = writers[source]
        names = ("ours, with a long name", "theirs")
        runs = {n: arm(tmp_path, n, [0.5, 0.6], write=write, suffix=suffix) for n in names}
    found = wb.compare(runs)
    colours = dict(zip(runs, ("#123456", "#654321")))
    ax = found.plot(width=3.25, height=2.6, palette=colours)
    ax.figure.savefig(tmp_path / "figure.pdf")
    assert ax.figure.get_figwidth() == 3.25
    box = ax.figure.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 3.25 and box.y1 <= 2.6
    # All scores are shares, and bands over two seeds are wider than any share can be.
    assert 0 <= ax.get_ylim()[0] < ax.get_ylim()[1] <= 1
    lines = [line.get_color() for line in ax.lines if not line.get_label().startswith("_")]
    legend = [line.get_color() for line in ax.figure.legends[0].get_lines()]
    assert lines == legend == list(colours.values())
    with pytest.raises(ValueError, match="palette='purpleish'"):
        found.plot(palette=["purpleish"])


# A known difference


@pytest.mark.long
def test_other_seeds_differ_by_nothing_and_another_rate_by_much(tmp_path):
    for name, first, rate in (("fast", 0, 1e-3), ("again", 4, 1e-3), ("slow", 0, 1e-7)):
        for seed in range(first, first + 3):
            one = trainer(
                tmp_path / name / f"seed-{seed}",
                make=trl.GRPOTrainer,
                data=dataset(8, levels=(2, 3)),
                seed=seed,
                learning_rate=rate,
                max_steps=16,
                num_generations=8,
                per_device_train_batch_size=64,
                gradient_accumulation_steps=1,
            )
            one.train()
            one.save_state()
    found = wb.compare([tmp_path / name for name in ("fast", "again", "slow")], smooth=4)
    table = found.table.set_index("arm")
    assert table["verdict"].to_dict() == {"again": "open", "slow": "worse"}
    assert table["paired"].to_dict() == {"again": False, "slow": True}
