"""The price of sampling: bills, break-even prices and the price of a machine, by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_records import curve, write

from papers.tables import break_even_prices
from papers.times import (
    OwnPrice,
    compute_with_replay,
    price_of_sampling,
    tokens_to_target,
    update_time,
)
from workbench.analysis import cost
from workbench.analysis.cost import CostModel, Tokens, bill_ratio, break_even
from workbench.analysis.runs import load_all
from workbench.labs import shipped

# One arm samples much and trains little, the other the reverse.
SAMPLER = [Tokens(400, 100, True)] * 2
TRAINER = [Tokens(100, 300, True)] * 2

TOKENS = st.builds(Tokens, st.floats(1, 1000), st.floats(1, 1000), st.just(True))


class TestBills:
    @pytest.mark.slow
    def test_flops_are_those_of_the_record_also_where_old_responses_are_read(self):
        # In a run of SPEC-RL: trained, sampled and read tokens by the prices 3 to 1 to 1.
        (record, *_) = load_all(shipped("runs") / "leaderboard" / "spec-rl")["spec-rl"]
        rounds = record.rounds
        assert rounds["tokens_read"].sum() > 0
        by_tokens = cost.MACHINES["flops"].per_round(rounds)
        share = by_tokens.cumsum() / by_tokens.sum()
        assert share == pytest.approx(rounds["flops"].cumsum() / rounds["flops"].sum(), abs=1e-3)
        # The twin is the same where no selected rollout is left out of the update.
        every = rounds.assign(tokens_selected=rounds["tokens_trained"])
        assert cost.MACHINES["flops-all"].per_round(every) == pytest.approx(by_tokens)

    def test_a_cost_model_adds_trained_tokens_and_priced_samples(self):
        rounds = pd.DataFrame(
            {"tokens_sampled": [100, 100], "tokens_trained": [40, 60], "tokens_selected": [80, 80]}
        )
        assert CostModel(0.5).per_round(rounds).tolist() == [90, 110]
        assert CostModel(0.5, bill="selected").per_round(rounds).tolist() == [130, 130]
        assert CostModel(2).name == "trained tokens, a sampled one counting 2"

    def test_by_hand(self):
        """At price 1 the bills are 500 and 400."""
        assert bill_ratio(SAMPLER, TRAINER, 1).value == pytest.approx(5 / 4)
        assert bill_ratio(SAMPLER, TRAINER, 2 / 3).value == pytest.approx(1)

    @given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4))
    def test_prices_lead_from_what_is_trained_to_what_is_sampled(self, pairs):
        ours, baseline = zip(*pairs)
        trained = np.exp(np.mean([np.log(a.trained / b.trained) for a, b in pairs]))
        sampled = np.exp(np.mean([np.log(a.sampled / b.sampled) for a, b in pairs]))
        assert bill_ratio(ours, baseline, 1e-9).value == pytest.approx(trained, rel=1e-4)
        assert bill_ratio(ours, baseline, 1e9).value == pytest.approx(sampled, rel=1e-4)

    def test_runs_that_do_not_reach_the_target_are_counted(self):
        ours = [Tokens(400, 100, False), Tokens(400, 100, True)]
        found = bill_ratio(ours, TRAINER, 1)
        assert (found.censored, found.high) == (1, np.inf)

    @pytest.mark.parametrize("price", [0, -1, np.nan, np.inf, "cheap", True])
    def test_a_price_of_zero_or_below_is_refused(self, price):
        with pytest.raises(ValueError, match="price="):
            CostModel(price)
        with pytest.raises(ValueError, match="price="):
            bill_ratio(SAMPLER, TRAINER, price)

    def test_an_unknown_bill_is_named(self):
        with pytest.raises(ValueError, match="bill='all'"):
            CostModel(1, bill="all")


class TestOwnPrice:
    def table(self, load=1.0):
        """50 trained and 100 sampled tokens a round, 2 s and 3 s on a machine without load."""
        columns = {
            "tokens_sampled": [80, 120],
            "tokens_trained": [50, 50],
            "tokens_selected": [75, 75],
            "seconds_generate": [2 * load, 2 * load],
            "seconds_update": [3 * load, 3 * load],
        }
        return pd.DataFrame(columns)

    def test_by_hand(self):
        """A trained token takes .06 s, so the 4 s of sampling are worth 66.7 of them."""
        found = OwnPrice().per_round(self.table())
        assert found.tolist() == pytest.approx([50 + 80 / 3, 50 + 120 / 3])
        assert found.sum() == pytest.approx((4 + 6) / 0.06)
        selected = OwnPrice(bill="selected").per_round(self.table())
        assert selected.sum() == pytest.approx((4 + 6) / 0.04)
        assert update_time(self.table()).tolist() == pytest.approx([150, 150])

    def test_the_load_of_the_machine_has_no_say(self):
        for measured_by in (OwnPrice().per_round, update_time):
            idle = measured_by(self.table())
            assert measured_by(self.table(load=3.7)) == pytest.approx(idle)

    def test_a_run_that_trained_nothing_has_no_price(self):
        with pytest.raises(ValueError, match="0 trained in 6; all must be above 0"):
            OwnPrice().per_round(self.table().assign(tokens_trained=0))
        with pytest.raises(ValueError, match="bill='all'"):
            OwnPrice(bill="all")
        with pytest.raises(ValueError, match="200 tokens sampled in 0 seconds"):
            update_time(self.table().assign(seconds_generate=0))


class TestBreakEven:
    def test_by_hand(self):
        """100 + 400 p = 300 + 100 p at p = 2/3."""
        found = break_even(SAMPLER, TRAINER)
        assert found.estimate == pytest.approx(2 / 3)
        assert found.cheaper_below
        # Without any spread between pairs nothing but the point itself is undecided.
        assert found.low == pytest.approx(2 / 3) == found.high
        assert not break_even(TRAINER, SAMPLER).cheaper_below
        assert np.isnan(break_even(SAMPLER[:1], TRAINER[:1]).low)

    def test_an_interval_between_two_prices_of_the_grid_is_found(self):
        ours = [Tokens(400, 100, True), Tokens(401, 100.1, True)]
        baseline = [Tokens(100, 300, True), Tokens(100.2, 300.1, True)]
        found = break_even(ours, baseline)
        assert 0.6 < found.low < found.estimate < found.high < 0.7

    @pytest.mark.parametrize("prices", [(0.5, 1, 2), (1, 2), (0.25, 0.5, 1)])
    def test_a_root_on_the_grid_is_found_at_either_end_and_between(self, prices):
        """400 p + 100 = 300 p + 200 at p = 1, where both bills are exactly 500."""
        found = break_even([Tokens(400, 100, True)], [Tokens(300, 200, True)], prices)
        assert found.estimate == 1

    def test_the_interval_holds_the_prices_at_which_the_ratio_may_be_one(self):
        ours = [Tokens(400, 100, True), Tokens(420, 90, True), Tokens(390, 120, True)]
        baseline = [Tokens(100, 300, True), Tokens(110, 280, True), Tokens(95, 310, True)]
        found = break_even(ours, baseline)
        assert found.low < found.estimate < found.high
        assert bill_ratio(ours, baseline, found.estimate).value == pytest.approx(1)
        assert bill_ratio(ours, baseline, found.low).high == pytest.approx(1, abs=1e-6)
        assert bill_ratio(ours, baseline, found.high).low == pytest.approx(1, abs=1e-6)
        within = bill_ratio(ours, baseline, np.sqrt(found.low * found.high))
        assert within.low < 1 < within.high
        # One undecided price, with a decided one on either side, is enough to find both ends.
        few = break_even(ours, baseline, (found.low / 2, found.estimate, found.high * 2))
        assert (few.low, few.high) == pytest.approx((found.low, found.high), rel=1e-6)

    def test_an_arm_that_is_always_cheaper_never_breaks_even(self):
        found = break_even([Tokens(50, 100, True)] * 2, TRAINER)
        assert np.isnan(found.estimate)
        assert found.cheaper_below
        assert np.isnan(found.low)

    def test_an_interval_that_goes_on_beyond_the_prices_is_open(self):
        ours = [Tokens(100, 10, True), Tokens(100, 1000, True), Tokens(100, 100, True)]
        found = break_even(ours, [Tokens(101, 100, True)] * 3)
        assert (found.low, found.high) == (0, np.inf)

    def test_prices_may_be_given_in_any_order_and_lie_above_zero(self):
        assert break_even(SAMPLER, TRAINER, [2, 0.1]) == break_even(SAMPLER, TRAINER, [0.1, 2])
        with pytest.raises(ValueError, match="price="):
            break_even(SAMPLER, TRAINER, prices=[0, 1])


def measured(path, seconds_generate=2.0, **options):
    """A run of 8 rounds: 100 tokens sampled and 50 trained in each, 25 of 75 selected in vain."""
    columns = {
        "tokens_sampled": [100.0] * 8,
        "tokens_trained": [50.0] * 8,
        "tokens_selected": [75.0] * 8,
        "seconds_generate": [seconds_generate] * 8,
        "seconds_update": [3.0] * 8,
        "flops_generate": [2 * 100.0] * 8,
        "flops_update": [6 * 50.0] * 8,
    }
    return curve(path, **options, every=2, columns=columns)


class TestMachines:
    def test_the_price_in_seconds_is_measured(self, tmp_path):
        """2 s for 100 sampled tokens, 3 s for 50 trained ones: .02 / .06 = 1/3."""
        measured(tmp_path, label="a", seed=0, accuracies=[0.2] * 5)
        measured(tmp_path, label="a", seed=1, accuracies=[0.2] * 5, seconds_generate=8.0)
        records = load_all(tmp_path)["a"]
        found = price_of_sampling(records)
        assert found.values.tolist() == pytest.approx([1 / 3, 4 / 3])
        assert found.value == pytest.approx(2 / 3), "a ratio is averaged on the log scale"
        selected = price_of_sampling(records[:1], bill="selected")
        assert selected.value == pytest.approx(1 / 2), "3 s for 75 tokens"

    def test_in_flops_it_is_a_third(self, tmp_path):
        """AERO, equation 23: 2 for a sampled token, 6 for a trained one."""
        measured(tmp_path, label="a", seed=0, accuracies=[0.2] * 5)
        [record] = load_all(tmp_path)["a"]
        assert price_of_sampling(record, "flops").value == pytest.approx(cost.FLOP_PRICE)
        assert cost.FLOP_PRICE == pytest.approx(1 / 3)

    def test_a_run_without_updates_has_no_price(self, tmp_path):
        columns = {
            "tokens_sampled": [10.0, 10.0],
            "tokens_trained": [0.0, 0.0],
            "seconds_generate": [1.0, 1.0],
            "seconds_update": [0.0, 0.0],
        }
        write(tmp_path, "a", columns=columns)
        with pytest.raises(ValueError, match="all must be above 0 to have a price"):
            price_of_sampling(load_all(tmp_path)["a"])
        with pytest.raises(ValueError, match="unit='rounds'"):
            price_of_sampling(load_all(tmp_path)["a"], "rounds")


class TestRecords:
    @staticmethod
    def arms(path, seeds=(0, 1, 2)):
        """The sampler reaches .5 after 3 rounds of 200 + 20 tokens, GRPO after 6 of 100 + 50."""
        shapes = {"sampler": (0.1, 200.0, 20.0), "grpo": (0.05, 100.0, 50.0)}
        for label, (slope, sampled, trained) in shapes.items():
            for seed in seeds:
                columns = {"tokens_sampled": [sampled] * 8, "tokens_trained": [trained] * 8}
                accuracies = 0.2 + slope * np.arange(0, 9, 2)
                curve(path, label, seed, accuracies, every=2, columns=columns)
        return load_all(path)

    def test_tokens_at_the_crossing(self, tmp_path):
        tokens = tokens_to_target(self.arms(tmp_path), 0.5)
        assert tokens["sampler"][0] == pytest.approx((600, 60, True))
        assert tokens["grpo"][0] == pytest.approx((600, 300, True))

    def test_a_run_that_stops_short_is_marked(self, tmp_path):
        tokens = tokens_to_target(self.arms(tmp_path, (0,)), 0.7)
        assert tokens["grpo"][0] == (800, 400, False)

    def test_ratios_by_price(self, tmp_path):
        table = cost.ratios_by_price(self.arms(tmp_path), 0.5, "grpo", prices=[0.1, 1, 10])
        assert table["label"].unique().tolist() == ["sampler"]
        expected = [(60 + 600 * price) / (300 + 600 * price) for price in (0.1, 1, 10)]
        assert table["ratio"].tolist() == pytest.approx(expected)
        assert table["n"].tolist() == [3, 3, 3]

    def test_break_even_prices(self, tmp_path):
        table = break_even_prices(self.arms(tmp_path), 0.5, "grpo")
        assert np.isnan(table.loc["sampler", "price"]), "it samples as much and trains less"
        assert table.loc["sampler", ["cheaper_below", "n"]].tolist() == [True, 3]

    def test_a_baseline_without_a_common_seed_is_named(self, tmp_path):
        curve(
            tmp_path, "a", 0, [0.2, 0.4], columns={"tokens_sampled": [1.0], "tokens_trained": [1.0]}
        )
        curve(
            tmp_path, "b", 1, [0.2, 0.4], columns={"tokens_sampled": [1.0], "tokens_trained": [1.0]}
        )
        with pytest.raises(ValueError, match=r"no seed in common: \[1\] and \[0\]"):
            cost.ratios_by_price(load_all(tmp_path), 0.3, "a")
        with pytest.raises(ValueError, match="baseline='c'"):
            break_even_prices(load_all(tmp_path), 0.3, "c")


def test_compute_with_replay_is_that_of_the_replay_study():
    """The six printed values of gamma come out with a ratio of 5.2."""
    printed = {7: 1.29, 6: 0.65, 5: 0.43, 4: 0.32, 2: 0.22, 1: 0.18}
    for inference, gamma in printed.items():
        made = compute_with_replay(inference, 8 - inference, 5.2)
        assert made == pytest.approx(gamma, abs=6e-3)
    for wrong in ({"inference": 0}, {"training": -1}, {"generation_cost": 0}):
        arguments = {"inference": 4, "training": 4, **wrong}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            compute_with_replay(**arguments)


class TestFixedCosts:
    def test_a_pods_round_on_an_l40s_costs_what_its_authors_measured(self):
        """4.3 + .055 * 32 + .19 * 8 over 4.3 + .055 * 8 + .19 * 8 seconds."""
        rounds = pd.DataFrame({"problems": 1, "rollouts": [32, 8], "selected": [8, 8]})
        pods, grpo = cost.MACHINES["l40s"].per_round(rounds)
        assert pods / grpo == pytest.approx(7.58 / 6.26)

    def test_a_machine_is_fitted_to_rounds_of_known_cost(self, tmp_path):
        """.01 s a problem and .002 s a sampled token; .03 and .004 to train; .01 s for the rest."""
        sampled = np.array([100.0, 300.0, 200.0, 500.0])
        trained = np.array([50.0, 20.0, 80.0, 60.0])
        columns = {
            "problems": [2] * 4,
            "tokens_sampled": sampled,
            "tokens_trained": trained,
            "seconds_generate": 0.02 + 0.002 * sampled,
            "seconds_update": 0.06 + 0.004 * trained,
            "seconds_verify": [0.015] * 4,
            "seconds_schedule": [0.005] * 4,
        }
        write(tmp_path, "a", rollouts=(10,) * 4, columns=columns)
        model = cost.of_machine(load_all(tmp_path))
        assert model.price == pytest.approx(0.5)
        assert model.fixed == pytest.approx(0.05 / 0.004)

    @pytest.mark.parametrize(("name", "value"), [("fixed", -1.0), ("by", "words")])
    def test_wrong_arguments_are_named(self, name, value):
        with pytest.raises(ValueError, match=name):
            CostModel(0.5, **{name: value})
