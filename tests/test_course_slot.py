"""Where a rollout starts and when it stops: the slot `course`, and the methods that have one."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import go, hand_made, same_record, same_weights, tiny_policy
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench import courses, curricula, methods, selectors
from workbench.courses import accepted, beginnings, first_of_each, followed, prefix_length
from workbench.policies import END, GO_ON, STOP, Plan, Sampling
from workbench.pools import Pool, Problem
from workbench.records.round_stats import round_stats
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.slots import Slot
from workbench.utils.descriptions import describe

HERE = Context(seed=0, round=1, max_new_tokens=48)
PROBLEMS = [Problem("a", "8+5-4-1=", ""), Problem("b", "3+9=", "")]
SAMPLING = Sampling(max_new_tokens=32)
SIZES = {"problems_per_round": 6, "evaluate_every": 0, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def late():
    return wb.labs.tiny(base="late", pool=12, held_out=0)


def no_prefixes(size, dtype=np.int32):
    return Ragged.of([[]] * size, dtype)


def finished(problem, correct, lengths, number=1, **columns):
    """A finished round of responses whose tokens are 5, 6, 7, ..."""
    correct = np.array(correct)
    return Rollouts(
        problem=problem,
        correct=correct,
        reward=correct.astype(float),
        response=Ragged.of([5 + np.arange(n) for n in lengths], np.int32),
        round=np.full(len(correct), number),
        columns=columns,
    )


# The rules, by hand


def test_lengths_of_prefixes():
    assert [prefix_length(20, share, hard=True) for share in (0.25, 0.75)] == [15, 5]
    assert prefix_length(20, 0.25, hard=False) == 5
    assert prefix_length(80, 0.45, hard=True) == 44
    assert prefix_length(80, 0.55, hard=False, cap=30) == 30
    assert (prefix_length(7, 0.25, hard=True), prefix_length(7, 0.25, hard=False)) == (6, 1)


@given(st.integers(1, 500), st.floats(0.01, 1), st.booleans(), st.none() | st.integers(1, 50))
def test_a_prefix_leaves_at_least_one_token(total, share, hard, cap):
    length = prefix_length(total, share, hard, cap)
    assert 0 <= length < total
    if cap is not None:
        assert (total - length if hard else length) <= cap


def test_the_share_follows_the_pass_rate_and_rests():
    control = courses.PassRateControl(0.25)
    seen = []
    for _ in range(9):
        control.observe(0.8)
        seen.append(control.share)
    # The average is .515, .529, .543: the first change is at the third step, the next five rest.
    assert seen == [0.25, 0.25] + [0.3] * 6 + [0.35]
    easier = courses.PassRateControl(0.25)
    for _ in range(3):
        easier.observe(0.2)
    assert easier.share == 0.2


@given(st.lists(st.lists(st.tuples(*[st.floats(0.01, 1)] * 3), max_size=6), min_size=1, max_size=5))
def test_drafts_are_kept_up_to_the_first_refusal(rows):
    expected = []
    for row in rows:
        kept = 0
        while kept < len(row) and np.log(row[kept][2]) <= np.log(row[kept][0]) - np.log(
            row[kept][1]
        ):
            kept += 1
        expected.append(kept)
    new, old, draws = (
        Ragged.of([[token[i] for token in row] for row in rows], np.float64).padded(np.nan)
        for i in range(3)
    )
    kept = accepted(np.log(new), np.log(old), np.nan_to_num(draws))
    assert kept.tolist() == expected


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.data())
def test_the_first_tokens_of_each_row(rows, data):
    lengths = np.array([data.draw(st.integers(0, len(row))) for row in rows])
    cut = first_of_each(Ragged.of(rows, np.int32), lengths)
    assert [cut[i].tolist() for i in range(len(rows))] == [row[:n] for row, n in zip(rows, lengths)]


def test_drafts_begin_where_there_are_any():
    drafts = hand_made([0.0, 1.0], ["a", "b"], lengths=[3, 4])
    found = beginnings(drafts, np.array([1, -1, 0]), np.array([2, 0, 3])).prefixes
    assert found.lengths.tolist() == [2, 0, 3]
    assert found[0].tolist() == drafts.response[1][:2].tolist()


# The methods' memories


def test_prefix_sampling_tries_skewed_problems_again():
    course = courses.PrefixSampling()
    problem = np.repeat(["hard", "easy", "even", "dead"], 8)
    right = [k < n for n in (1, 7, 4, 0) for k in range(8)]
    lengths = np.tile([20, 20, 20, 20, 20, 20, 20, 20], 4)
    course.feedback(finished(problem, right, lengths), HERE)
    assert {name: (hard, len(tokens)) for name, (hard, tokens) in course.prefixes.items()} == {
        "hard": (True, 15),
        "easy": (False, 5),
    }
    pool = Pool([Problem(name, name, "") for name in ("even", "easy", "hard", "x", "y", "z")])
    curriculum = curricula.Recycled()
    curriculum.feedback(finished(problem, right, lengths), HERE)
    chosen = [p.id for p in curriculum.choose(pool, 4, replace(HERE, round=2))]
    assert set(chosen[:2]) == {"hard", "easy"} and len(set(chosen)) == 4
    plan = course.plan([pool[1], pool[0]], np.array([2, 1]), np.zeros(2, int), HERE)
    assert plan.prefixes.lengths.tolist() == [5, 5, 0]
    # A group that started from a prefix is not tried once more, and it moves the controller.
    again = finished(["hard"] * 8, [True] * 2 + [False] * 6, [20] * 8, number=2)
    context = replace(HERE, round=2)
    course.feedback(again, context)
    curriculum.feedback(again, context)
    assert course.prefixes == {} and curriculum.waiting == []
    assert course.controls[True].average == pytest.approx(0.95 * 0.5 + 0.05 * 0.25)
    assert course.controls[False].average == 0.5


def test_prefix_rl_deals_rollouts_out_among_prefixes_and_the_bare_problem(tmp_path):
    wb.replay.save_answers(finished(["a"], [True], [20]), tmp_path / "answers")
    course = courses.OwnPrefixes(path=str(tmp_path / "answers"))
    counts, before = np.array([8, 2]), np.zeros(2, dtype=np.int64)
    plan = course.plan(PROBLEMS, counts, before, HERE)
    assert plan.columns["group"].tolist() == ["a", "a@1", "a@2", "a@3"] * 2 + ["b", "b"]
    lengths = plan.prefixes.lengths
    assert lengths[[0, 4, 8, 9]].tolist() == [0, 0, 0, 0]
    assert ((lengths[1:4] >= 8) & (lengths[1:4] <= 16)).all()
    assert lengths[1:4].tolist() == lengths[5:8].tolist()
    # Right answers from a prefix do not make the problem a solved one, right bare ones do.
    nothing = np.zeros(2, dtype=np.int64)
    of_prefix = finished(
        ["a", "a"], [False, True], [4, 4], prefix=np.array([0, 9]), gradient=nothing
    )
    course.feedback(of_prefix, HERE)
    assert not course.solved["a"]
    course.feedback(finished(["a"], [True], [4], prefix=nothing[:1]), HERE)
    assert course.plan(PROBLEMS, counts, before, HERE).prefixes.lengths.sum() == 0


def test_partial_rollouts_stop_once_enough_groups_are_complete():
    course = courses.Partial(0.5)
    plan = course.plan(PROBLEMS, np.array([2, 2]), np.zeros(2, int), HERE)
    says = lambda *rows: plan.stop(SimpleNamespace(rows=np.array(rows))).tolist()  # noqa: E731
    assert says(0, 1, 2, 3) == [GO_ON] * 4
    assert says(1, 2) == [GO_ON] * 2  # each group has one that grows
    assert says(2, 3) == [STOP] * 2
    whole = courses.Partial(1.0).plan(PROBLEMS, np.array([2, 2]), np.zeros(2, int), HERE)
    assert whole.stop(SimpleNamespace(rows=np.array([3]))).tolist() == [GO_ON]
    rollouts = finished(["a", "a", "b"], [True, False, True], [2, 3, 4]).assign(
        status=["ok", "stopped", "ok"]
    )
    kept = selectors.Finished(whole_groups=True).select(rollouts, HERE)
    assert kept.rows.tolist() == [2]
    assert selectors.Finished().select(rollouts, HERE).rows.tolist() == [0, 2]


# Policies


@pytest.mark.parametrize("merges", [True, False])
def test_a_greedy_response_is_gone_on_with_from_any_part_of_it(merges):
    policy = tiny_policy()
    policy.merges = merges
    policy.share_prefixes = merges
    greedy = replace(SAMPLING, temperature=0)
    whole = policy.generate(PROBLEMS, [2, 1], greedy, seed=0)
    lengths = np.array([3, 0, 2])
    prefixes = first_of_each(whole.response, lengths)
    part = policy.generate(PROBLEMS, [2, 1], greedy, 0, Plan(prefixes=prefixes))
    assert part.text.tolist() == whole.text.tolist()
    assert part.lengths.tolist() == (whole.lengths - lengths).tolist()
    for row in range(3):
        assert part.prompt[row].tolist() == [*whole.prompt[row], *prefixes[row]]
    # The prefix counts towards the longest response.
    short = replace(greedy, max_new_tokens=5)
    cut = policy.generate(PROBLEMS, [2, 1], short, 0, Plan(prefixes=prefixes))
    assert (cut.lengths + lengths).max() <= 5
    assert cut.truncated.tolist() == (whole.lengths > 5).tolist()


def test_a_prefix_is_masked_or_belongs_to_the_response():
    policy = tiny_policy()
    whole = policy.generate(PROBLEMS, [2, 2], SAMPLING, seed=0)
    lengths = np.minimum(whole.lengths - 1, 4)
    plan = beginnings(whole, np.arange(4), lengths)
    sampled = policy.generate(PROBLEMS, [2, 2], SAMPLING, 1, plan)
    masked = followed(sampled, replace(plan, logprobs=None))
    joined = followed(sampled, plan)
    assert masked["prefix"].tolist() == joined["kept"].tolist() == lengths.tolist()
    assert (joined.lengths - masked.lengths).tolist() == lengths.tolist()
    assert joined.prompt.values.tolist() == whole.prompt.values.tolist()
    # A forward pass over either gives what was noted while sampling, for every response token.
    for rollouts in (masked, joined):
        again = policy.rescored(rollouts)
        assert again.old_logprobs.values == pytest.approx(rollouts.old_logprobs.values, abs=1e-4)
        mean = Ragged(rollouts.token_entropy.values, rollouts.response.offsets)
        assert again.token_entropy.values == pytest.approx(mean.values, abs=1e-4)


class Watch:
    """Ends or stops rows at a step, and keeps what it saw."""

    def __init__(self, at, says):
        self.at, self.says, self.seen = at, says, {}

    def __call__(self, growing):
        row = list(growing.rows)
        self.seen[growing.step] = (
            dict(zip(row, growing.margin())),
            dict(zip(row, growing.texts(99))),
        )
        said = [self.says.get(number, GO_ON) for number in row]
        return np.array(said) if growing.step == self.at else np.full(len(row), GO_ON)


@pytest.mark.parametrize("merges", [True, False])
def test_stopped_rollouts_end_and_the_others_are_what_they_were(merges):
    policy = tiny_policy()
    policy.merges = policy.share_prefixes = merges
    plain = policy.generate(PROBLEMS, [3, 3], SAMPLING, seed=0)
    watch = Watch(2, {0: STOP, 4: END})
    part = policy.generate(PROBLEMS, [3, 3], SAMPLING, 0, Plan(stop=watch))
    assert part["stopped"].tolist() == [True, False, False, False, False, False]
    assert part.lengths[[0, 4]].tolist() == [2, 2]
    assert not part.truncated[[0, 4]].any()
    others = [1, 2, 3, 5]
    assert part.text[others].tolist() == plain.text[others].tolist()
    assert part.old_logprobs.take(others).values.tolist() == pytest.approx(
        plain.old_logprobs.take(others).values.tolist(), abs=1e-5
    )
    # The margin is that of the distribution from which the second token was drawn.
    margin, texts = watch.seen[2]
    ids = [*plain.prompt[1], plain.response[1][0]]
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0, -1]
    top = logits.softmax(-1).topk(2).values
    assert margin[1] == pytest.approx(float(top[0] - top[1]), abs=1e-5)
    assert texts[0] == part.text[0]


def test_hidden_states_are_those_of_the_model():
    policy = tiny_policy()
    seen = {}

    def stop(growing):
        if growing.step == 2:
            seen.update(zip(growing.rows.tolist(), growing.states()))
        return np.zeros(len(growing.rows), int)

    plain = policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, Plan(stop=stop, states=True))
    for row, state in seen.items():
        ids = torch.tensor([[*plain.prompt[row], plain.response[row][0]]])
        with torch.no_grad():
            expected = policy.decoder(ids).last_hidden_state[0, -1]
        assert state == pytest.approx(expected.numpy(), abs=1e-4)
    assert seen


# Runs


@dataclass
class Anything(Slot):
    """Whatever a test wants a course to plan."""

    make: str = "nothing"

    needs = frozenset({"prefixes", "stopping"})
    reads_verdict = False

    def plan(self, problems, counts, before, context):
        size = int(counts.sum())
        everything = Plan(stop=lambda growing: np.full(len(growing.rows), STOP))
        long = Ragged.of([np.full(context.max_new_tokens, 5)] * size, np.int32)
        return {
            "nothing": None,
            "plain": Plan(),
            "looks": Plan(stop=lambda growing: np.full(len(growing.rows), GO_ON)),
            "everything": everything if context.round == 3 else None,
            "long": Plan(prefixes=long),
            "few": Plan(prefixes=no_prefixes(1)),
            "words": Plan(stop=lambda growing: ["stop"] * len(growing.rows)),
        }[self.make]


def test_by_default_a_run_is_what_it_was(late, tmp_path):
    assert "course" not in describe(methods.grpo())
    assert describe(methods.grpo().but(course=None)) == describe(methods.grpo())
    assert "course" in describe(methods.prefix_sampling())
    runs = {}
    for name, method in {
        "default": methods.grpo(4),
        "explicit": methods.grpo(4).but(course=None),
        "nothing": methods.grpo(4).but(course=Anything()),
        "looks": methods.grpo(4).but(course=Anything("looks")),
    }.items():
        runs[name] = wb.Run(late, method, out=tmp_path / name, **SIZES)
        go(runs[name], 2)
    same_record(runs["default"].record, runs["explicit"].record)
    for name in ("explicit", "nothing", "looks"):
        assert same_weights(tmp_path / "default", tmp_path / name)
    plain, looked = (runs[name].record.rounds for name in ("default", "looks"))
    assert plain["tokens_sampled"].equals(looked["tokens_sampled"])
    assert looked["tokens_read"].sum() == looked["status_stopped"].sum() == 0
    assert "tokens_read" not in plain


METHODS = {
    "prefix_sampling": methods.prefix_sampling(8),
    "prefix_rl": methods.prefix_rl(8),
    "spec_rl": methods.spec_rl(4),
    "partial_rollouts": methods.partial_rollouts(4),
    "duet": methods.duet(8, limit=40, low=2, refit=2, quantiles=(0.2, 0.5)),
    "arrol": methods.arrol(8, at=8, warm_up=1, learning_rate=0.01, units=16),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(late, name, tmp_path):
    method = METHODS[name]
    whole = wb.Run(late, method, out=tmp_path / "whole", learning_rate=3e-3, **SIZES)
    go(whole, 6)
    go(wb.Run(late, method, out=tmp_path / "parts", learning_rate=3e-3, **SIZES), 4)
    resumed = wb.Run.resume(tmp_path / "parts")
    go(resumed, 6)
    same_record(whole.record, resumed.record)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    rollouts = whole.record.rollouts()
    later = rollouts[rollouts["round"] > 4]
    # What the run had in memory when it was interrupted is gone on with.
    if name in ("duet", "arrol"):
        assert (later["status"] == "stopped").any()
    elif name != "prefix_rl":
        assert (later["prefix"] + later["kept"]).max() > 0
    whole_length = rollouts["prefix"] + rollouts["length"]
    assert whole_length.max() <= late.sampling.max_new_tokens
    rounds = whole.record.rounds
    sampled = (rollouts["length"] - rollouts["kept"]).groupby(rollouts["round"]).sum()
    prompts = rounds["tokens_sampled"].to_numpy() - sampled.to_numpy()
    assert (prompts > 0).all() and prompts.max() < 12 * 20
    assert rounds["tokens_read"].sum() == rollouts["read"].sum()


def test_an_unsolved_problem_starts_from_a_part_of_its_answer(late, tmp_path):
    """Answers of an earlier run, as in the paper; the groups are those of the starts."""
    first = wb.Run(late, methods.grpo(8), out=tmp_path / "first", **SIZES)
    rollouts = []
    go(first, 1)
    policy = first.policy
    found = policy.generate(late.problems, [24] * 12, late.sampling, seed=5)
    scores = late.verifier.score(list(found.text), list(found.answer))
    rollouts = found.assign(correct=scores.correct, reward=scores.reward)
    wb.replay.save_answers(rollouts, tmp_path / "answers")
    method = methods.prefix_rl(8, path=str(tmp_path / "answers"))
    run = wb.Run(late, method, out=tmp_path / "run", **SIZES)
    go(run, 3)
    table = run.record.rollouts()
    started = table[table["prefix"] > 0]
    assert len(started) and (started["group"] != started["problem"]).all()
    assert (table[table["group"] == table["problem"]]["prefix"] == 0).all()
    # Advantages are those of the groups of one start: their mean is 0 in each.
    means = table.groupby(["round", "group"])["advantage"].mean()
    assert means.abs().max() < 1e-6
    resumed = wb.Run.resume(tmp_path / "run")
    assert len(go(resumed, 4)) == 1


def test_a_draft_that_the_policy_still_believes_in_costs_one_token(tmp_path):
    lab = wb.labs.tiny(base="late", pool=6, held_out=0, learning_rate=1e-12)
    run = wb.Run(lab, methods.spec_rl(4), out=tmp_path / "run", **SIZES)
    go(run, 2)
    first, second = (rows for _, rows in run.record.rollouts().groupby("round"))
    both = first.merge(second, on=["problem", "draw"])
    assert len(both) == 24
    assert (both["kept_y"] == both["length_x"] - 1).all()
    # The model has read each draft with its prompt once, and what is kept of it once more.
    assert second["read"].sum() > both["length_x"].sum() + both["kept_y"].max()
    assert run.record.rounds["tokens_read"].tolist()[0] == 0


def test_stopped_rollouts_wait_and_go_on(late, tmp_path):
    run = wb.Run(late, METHODS["partial_rollouts"], out=tmp_path / "run", **SIZES)
    go(run, 4)
    table = run.record.rollouts().set_index(["round", "problem", "draw"]).sort_index()
    rounds = run.record.rounds.set_index("round")
    went_on = 0
    for (number, problem, draw), row in table.iterrows():
        waits = (table.loc[(number, problem)]["status"] == "stopped").any()
        assert not (waits and row["selected"])
        if row["status"] == "stopped":
            assert row["reward"] == 0 and not row["correct"]
        after = (number + 1, problem, draw)
        if waits and number < 4:
            # Its problem comes again in the next round, and the response begins with what was
            # there, but for the last token of one that had ended.
            again = table.loc[after]
            assert again["kept"] == row["length"] - (row["status"] != "stopped")
            if row["status"] == "stopped":
                assert again["text"].startswith(row["text"])
                went_on += 1
    assert went_on > 5
    stopped = table[table["status"] == "stopped"]
    new = (stopped["length"] - stopped["kept"]).groupby("round").sum()
    assert rounds.loc[new.index, "tokens_stopped"].tolist() == new.tolist()
    assert rounds["status_stopped"].sum() == len(stopped)


def test_costs_count_what_was_read_sampled_and_stopped():
    """Two rollouts share a masked prefix of 3, one keeps 2 of 5 tokens, one was stopped."""
    rollouts = hand_made([1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"], lengths=[4, 5, 5, 6])
    prompt = Ragged.of([[1] * 8, [1] * 8, [2] * 5, [2] * 5], np.int32)
    plan = Plan(prefixes=Ragged.of([[1] * 3, [1] * 3, [], []], np.int32))
    table = followed(rollouts.assign(prompt=prompt, round=np.ones(4, int)), plan)
    assert table["read"].tolist() == [3, 0, 0, 0]
    table = table.assign(
        kept=np.array([0, 0, 2, 0]),
        status=["ok", "wrong", "ok", "stopped"],
        selected=np.zeros(4, bool),
        trained=np.zeros(4, bool),
        gradient=np.ones(4, bool),
        advantage=np.zeros(4),
        logprob_diff=np.full(4, np.nan),
    )
    row = round_stats(1, table, [], 100, 1e-6)
    assert row["tokens_sampled"] == (4 + 5 + 3 + 6) + (5 + 5)  # responses, and two bare prompts
    assert (row["tokens_read"], row["tokens_stopped"], row["status_stopped"]) == (3, 6, 1)
    assert row["flops_generate"] == 2 * 100 * (28 + 3)


# Bad input


@pytest.mark.parametrize(
    "make, message",
    [
        ("long", r"^course: .*would start with \d+ tokens, and a response has \d+ at most"),
        ("few", "^course: .*1 prefixes came for 24 rollouts"),
        ("words", "^course: its stop returned"),
        ("everything", "^course: Anything stopped all 24 rollouts of a request"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_one_error_and_nothing_is_lost(
    late, make, message, tmp_path
):
    run = wb.Run(late, methods.grpo(4).but(course=Anything(make)), out=tmp_path / "run", **SIZES)
    with pytest.raises(ValueError, match=message):
        go(run, 4)
    if make == "everything":
        assert run.record.rounds["round"].tolist() == [1, 2]
        assert same_weights(tmp_path / "run", tmp_path / "run")


def test_what_a_policy_cannot_give_is_refused_before_a_model_is_loaded(late):
    loaded = []
    lab = replace(late, make_policy=lambda: loaded.append(1), lacks=frozenset({"stopping"}))
    with pytest.raises(ValueError, match=r"course=Partial\(\) needs stopping rollouts while they"):
        wb.Run(lab, methods.partial_rollouts())
    wb.Run(lab, methods.prefix_sampling(), **SIZES)
    assert not loaded
    assert wb.labs.tiny(pool=8).lacks == frozenset()
    with pytest.raises(ValueError, match=r"^course=.*must|^course=.*needed"):
        methods.grpo().but(course=selectors.All())


def test_what_no_engine_and_no_batch_can_do():
    policy = tiny_policy()
    ended = Plan(prefixes=Ragged.of([[policy.end_ids[0]], [5]], np.int32))
    with pytest.raises(ValueError, match="a prefix holds a token that ends responses"):
        policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, ended)
    watch = Plan(stop=lambda growing: np.zeros(len(growing.rows)))
    policy.rows = 3
    with pytest.raises(ValueError, match=r"rows=3: .*this one has 4"):
        policy.generate(PROBLEMS, [2, 2], SAMPLING, 0, watch)
    states = Plan(stop=lambda growing: growing.states()[:, 0] > 9)
    with pytest.raises(ValueError, match="hidden states, which are there from the second token"):
        policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, states)


@pytest.mark.parametrize("name", METHODS)
def test_trl_and_verl_refuse_a_course(name):
    settings = pytest.importorskip("workbench.verl.settings")
    with pytest.raises(ValueError, match=r"^(course|curriculum)=.* needs "):
        settings.check(METHODS[name])
    from workbench.verl.loop import PROVIDES

    with pytest.raises(ValueError, match="needs"):
        METHODS[name].check_provided(PROVIDES, "this loop")


@pytest.mark.parametrize("value", [method.course for method in METHODS.values()])
def test_every_course_keeps_the_contract(value):
    wb.check(value)
