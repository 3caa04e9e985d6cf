"""Verdicts: hand-made intervals on either side of a bound and of a published size, and families."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from papers import verdicts
from papers.intervals import Unpaired
from papers.verdicts import Claim, Finding, judge, verdict
from workbench.analysis.intervals import Measurement

NUMBERS = st.floats(-10, 10)


class TestRule:
    @pytest.mark.parametrize(
        ("low", "high", "published", "expected"),
        [
            (0.1, 0.3, None, "agrees"),
            (0.1, 0.3, 0.2, "agrees"),
            (0.1, 0.3, 0.3, "agrees"),
            (0.1, 0.3, 0.4, "smaller than published"),
            (-0.1, 0.3, None, "cannot tell"),
            (-0.1, 0.3, 0.2, "cannot tell"),
            (-0.1, 0.3, 0.4, "published size excluded"),
            (-0.3, -0.1, None, "disagrees"),
            (-0.3, -0.1, 0.4, "disagrees"),
            (0.0, 0.3, None, "cannot tell"),  # a bound that is touched is not cleared
            (-0.3, 0.0, None, "cannot tell"),
            (-0.3, 0.0, 0.4, "published size excluded"),
            (0.1, math.inf, 0.4, "agrees"),
            (-math.inf, 0.3, 0.4, "published size excluded"),
            (math.nan, math.nan, None, "cannot tell"),
        ],
    )
    def test_an_interval_decides(self, low, high, published, expected):
        assert verdict(low, high, published=published) == expected

    def test_an_interval_without_the_published_size_sees_none(self):
        """-.1 [-.5, .3] excludes the published +1.9, which the sign alone did not see."""
        assert verdict(-0.5, 0.3, published=1.9) == "published size excluded"

    def test_a_match_is_a_bound_below_zero(self):
        assert verdict(-0.8, 0.4, bound=-1.0) == "agrees"
        assert verdict(-1.4, 0.4, bound=-1.0) == "cannot tell"
        assert verdict(-2.4, -1.4, bound=-1.0) == "disagrees"

    @given(NUMBERS, NUMBERS, NUMBERS)
    def test_a_claim_and_its_opposite_never_both_agree(self, a, b, bound):
        low, high = sorted((a, b))
        above = verdict(low, high, bound=bound)
        below = verdict(-high, -low, bound=-bound)
        opposite = {"agrees": "disagrees", "disagrees": "agrees", "cannot tell": "cannot tell"}
        assert below == opposite[above]

    @given(NUMBERS, NUMBERS, st.floats(0.001, 10))
    def test_a_published_size_only_refines(self, a, b, published):
        low, high = sorted((a, b))
        finer = {"smaller than published": "agrees", "published size excluded": "cannot tell"}
        refined = verdict(low, high, published=published)
        assert finer.get(refined, refined) == verdict(low, high)

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: verdict(1, 0), "low=1, high=0"),
            (lambda: verdict(0, 1, published=-1), "published=-1, bound=0.0"),
            (lambda: verdict(0, 1, bound=2, published=2), "the size must lie above the bound"),
        ],
    )
    def test_bad_input_is_named(self, call, says):
        with pytest.raises(ValueError, match=says):
            call()

    def test_there_are_six(self):
        assert set(verdicts.VERDICTS) == {
            "agrees",
            "smaller than published",
            "published size excluded",
            "disagrees",
            "cannot tell",
            "by definition",
        }
        assert verdicts.kind("cannot tell: no runs of x") == "cannot tell"


class TestClaim:
    def test_sizes_are_scaled_by_the_gain_of_the_baseline(self):
        """+2 where the baseline gains 20 is +4 where it gains 40."""
        claim = Claim("A", "gains", sizes=(2.0,), published_gain=(20.0,))
        assert claim.published_edge(40) == 4
        with pytest.raises(ValueError, match="'gains'"):
            claim.published_edge()

    def test_the_smallest_of_several_sizes_is_to_be_excluded(self):
        assert Claim("A", "gains", sizes=(3.8, 1.9, 2.7)).published_edge() == 1.9
        saving = Claim("A", "saves", sizes=(-28.75, -16.25), direction="below")
        assert saving.published_edge() == 16.25, "turned around, so that the claim says above"

    def test_a_size_on_the_other_side_says_nothing(self):
        assert Claim("A", "gains", sizes=(-1.0,)).published_edge() is None
        matching = Claim("A", "is as good", sizes=(0.2,), direction="matches", margin=1.0)
        assert matching.published_edge() is None
        assert matching.edge == -1
        assert Claim("A", "takes at most 4 %", direction="below", bound=4.0).edge == -4

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"direction": "up"}, "direction='up'"),
            ({"direction": "matches"}, "'it': a claim that matches needs a margin above 0"),
            ({"sizes": (1.0,), "published_gain": (1.0, 2.0)}, "1 sizes and 2 gains"),
        ],
    )
    def test_bad_claims_are_named(self, options, says):
        with pytest.raises(ValueError, match=says):
            Claim("A", "it", **options)


def seen(*values, **options):
    return Finding(Measurement(np.array(values, dtype=float), **options))


class TestJudge:
    def test_a_row_by_hand(self):
        """Differences 1, 2 and 3: mean 2, half-width 2.484."""
        claim = Claim("PODS", "gains", "table 1", published="+9", sizes=(9.0,))
        [row] = judge([claim], [seen(1, 2, 3)]).to_dict("records")
        assert row["here"] == 2
        assert [row["low"], row["high"]] == pytest.approx([-0.484, 4.484], abs=0.001)
        assert (row["n"], row["expected"], row["alone"]) == (3, 9, "published size excluded")
        assert row["p"] == pytest.approx(0.0742, abs=0.001)
        # Two tests are in the family: is it 0 (p .074), and is it 9 (p .0067)?
        assert row["p_holm"] == pytest.approx(row["p"])
        assert row["verdict"] == "published size excluded"

    def test_a_claim_that_something_is_smaller_is_turned_around(self):
        claim = Claim("AERO", "saves, %", sizes=(-50.0, -47.0), direction="below")
        [agrees] = judge([claim], [seen(-55, -54, -56)]).to_dict("records")
        assert (agrees["alone"], agrees["expected"]) == ("agrees", -47)
        [smaller] = judge([claim], [seen(-20, -21, -22)]).to_dict("records")
        assert smaller["alone"] == "smaller than published"
        [against] = judge([claim], [seen(20, 21, 22)]).to_dict("records")
        assert against["alone"] == "disagrees"

    def test_one_seed_and_no_runs_cannot_tell_and_say_why(self):
        claims = [Claim("A", "one"), Claim("A", "none")]
        table = judge(claims, [seen(5), Finding(reason="no runs of pods")])
        assert table["alone"].tolist() == [
            "cannot tell: a single seed has no interval",
            "cannot tell: no runs of pods",
        ]
        assert table["verdict"].tolist() == table["alone"].tolist()
        assert table["n"].tolist() == [1, 0]
        assert table["p_holm"].isna().all()

    def test_holm_withdraws_what_one_test_among_many_would_find(self):
        """p is .03 alone, and .3 at least among ten claims of which the others say nothing."""
        weak = seen(*(np.array([1.0, -1.0, 0.5, -0.5]) + 1.8))
        nothing = [seen(1, -1, 0.5, -0.5) for _ in range(9)]
        claims = [Claim("A", f"claim {i}") for i in range(10)]
        alone = judge(claims[:1], [weak])
        assert alone["verdict"].tolist() == ["agrees"]
        family = judge(claims, [weak, *nothing])
        assert family["alone"].iloc[0] == "agrees"
        assert family["verdict"].iloc[0] == "cannot tell"
        assert family["p_holm"].iloc[0] == pytest.approx(10 * family["p"].iloc[0])

    @pytest.mark.slow
    @given(st.lists(st.lists(NUMBERS, min_size=2, max_size=5), min_size=1, max_size=5))
    def test_the_correction_never_adds_a_verdict(self, values):
        """What is told within the family is told alone."""
        assume(all(np.ptp(each) > 1e-6 for each in values))
        claims = [Claim("A", f"claim {i}", sizes=(2.0,)) for i in range(len(values))]
        table = judge(claims, [seen(*each) for each in values])
        for alone, within in zip(table["alone"], table["verdict"]):
            weaker = {
                "agrees": {"agrees", "cannot tell"},
                "smaller than published": {
                    "smaller than published",
                    "agrees",
                    "published size excluded",
                    "cannot tell",
                },
                "published size excluded": {"published size excluded", "cannot tell"},
                "disagrees": {"disagrees", "published size excluded", "cannot tell"},
                "cannot tell": {"cannot tell"},
            }
            assert within in weaker[alone]

    def test_censored_runs_leave_an_end_open(self):
        claim = Claim("Knapsack RL", "rollouts to the target, %", sizes=(-50.0,), direction="below")
        never = seen(20.0, 40.0, 60.0, scale="percent", censored=3)
        [row] = judge([claim], [never]).to_dict("records")
        assert row["high"] == math.inf
        assert row["alone"] == "cannot tell"

    def test_runs_of_others_are_judged_the_same_way(self):
        measured = Unpaired(np.array([3.0, 4.0, 5.0, 4.0]), np.array([1.0, 2.0, 1.5, 1.5]))
        [row] = judge([Claim("PODS", "gains")], [Finding(measured)]).to_dict("records")
        assert (row["alone"], row["n"], row["here"]) == ("agrees", 4, 2.5)

    def test_each_claim_needs_a_finding(self):
        with pytest.raises(ValueError, match="2 claims and 1 findings"):
            judge([Claim("A", "a"), Claim("A", "b")], [Finding()])


class TestScaledSizes:
    """A published gain is scaled by what the baseline gains here, which has an error of its own."""

    CLAIM = Claim("A", "gains", sizes=(2.0,), published_gain=(20.0,))

    def test_an_exact_scale_and_one_that_varies(self):
        """+2 where the baseline gains 20 is +4 where it gains 40: 1.4 [.9, 1.9] excludes it.

        A baseline that gains 40 on average and from 8 to 72 does not exclude it.
        """
        values = np.array([1.1, 1.4, 1.7, 1.4])
        exact = Finding(Measurement(values), Measurement(np.full(4, 40.0)))
        varied = Finding(Measurement(values), Measurement(np.array([72.0, 8.0, 56.0, 24.0])))
        found = judge([self.CLAIM, self.CLAIM], [exact, varied])
        assert found["expected"].tolist() == pytest.approx([4, 4])
        assert found["alone"].tolist() == ["smaller than published", "agrees"]
        # The sizes of the seeds are 7.2, .8, 5.6 and 2.4.
        assert found.loc[1, ["expected_low", "expected_high"]].tolist() == pytest.approx(
            [-0.648, 8.648], abs=0.001
        )
        assert verdicts.table(found)["scaled"].tolist() == ["+4.0 [4.0, 4.0]", "+4.0 [-0.6, 8.6]"]

    def test_a_size_that_is_not_scaled_has_no_interval(self):
        found = judge([Claim("A", "gains", sizes=(2.0,))], [seen(1.0, 1.1, 0.9)])
        assert verdicts.table(found)["scaled"].tolist() == [""]


class TestByDefinition:
    def test_what_follows_from_a_definition_is_no_evidence(self):
        options = {"sizes": (-50.0,), "direction": "below", "by_definition": True}
        claims = [Claim("A", f"saves {i}, %", **options) for i in range(3)]
        found = judge(claims, [seen(-55, -54, -56), seen(-20, -21, -22), seen(20, 21, 22)])
        # Where it comes out on the other side, the definition was not what was thought.
        expected = ["by definition", "by definition: smaller than published", "disagrees"]
        assert found["alone"].tolist() == expected
        assert found["verdict"].map(verdicts.kind).tolist() == [
            "by definition",
            "by definition",
            "disagrees",
        ]


class TestFiles:
    def test_verdicts_are_written_and_read_again(self, tmp_path):
        claims = [Claim("PODS", "gains", published="+2"), Claim("AERO", "saves")]
        table = judge(claims, [seen(1.0, 1.1, 0.9), Finding(reason="no runs of aero")])
        verdicts.write(table, tmp_path / "made" / "verdicts.csv")
        again = verdicts.read(tmp_path / "made" / "verdicts.csv")
        columns = ["paper", "claim", "published", "here", "low", "high", "n", "verdict"]
        assert set(columns) <= set(again)
        assert again["verdict"].tolist() == ["agrees", "cannot tell: no runs of aero"]
        assert again["published"].tolist() == ["+2", ""]
        shown = verdicts.table(again)
        assert shown["here"].tolist() == ["+1.0 [0.8, 1.2]", ""]
        assert shown["seeds"].tolist() == ["3", ""]
        assert verdicts.table(table)["here"].tolist() == shown["here"].tolist()
