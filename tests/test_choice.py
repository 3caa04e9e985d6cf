"""Multiple choice: where a letter is found, what is no letter, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.verifiers import Choice, Scores

READ = [
    # boxes
    (r"so \boxed{C}.", "C"),
    (r"\boxed{c}", "C"),
    (r"\boxed{\text{C}}", "C"),
    (r"\boxed{(C)}", "C"),
    (r"\boxed{\textbf{(C)}}", "C"),
    (r"\boxed{\mathrm{C}}", "C"),
    (r"\boxed{C. 12 m}", "C"),
    (r"\boxed{C) 12 m}", "C"),
    (r"\boxed{ C }", "C"),
    (r"\boxed{A}", "A"),
    (r"first \boxed{A}, no: \boxed{D}", "D"),
    (r"\boxed{\boxed{B}}", "B"),
    (r"\boxed{\text{Option B}}", "B"),
    (r"\boxed{\textbf{\text{D}}}", "D"),
    (r"\boxed{A}, B follows", "A"),
    (r"\fbox{x} and \boxed{B", ""),
    (r"\boxed{B} and \boxed{12}", "B"),
    (r"The answer is A. \boxed{D}", "D"),
    (r"\boxed{A, C}", "AC"),
    (r"\boxed{\text{A and C}}", "AC"),
    (r"\boxed{A/B}", "AB"),
    (r"\boxed{12 m}", ""),
    (r"\boxed{A cat}", ""),
    (r"\boxed{Ar}", ""),
    (r"\boxed{}", ""),
    # tags
    ("<think>\nA?\n</think>\n<answer>\nC\n</answer>", "C"),
    ("<answer>(C) 12 m</answer>", "C"),
    ("<answer>The answer is C.</answer>", "C"),
    (r"<answer>A</answer> \boxed{B}", "B"),
    ("<answer>A</answer> <answer>B", "A"),
    # statements
    ("The answer is therefore C", "C"),
    ("The answer is definitely C.", "C"),
    ("Answer: C", "C"),
    ("answer: c", "C"),
    ("**Answer:** C", "C"),
    ("**Answer**: (C)", "C"),
    ("Answer:\n\nC", "C"),
    ("The answer is C.", "C"),
    ("The answer is (C), as shown.", "C"),
    ("The answer is $C$.", "C"),
    ("The answer is **C**", "C"),
    (r"The final answer is \(\text{C}\).", "C"),
    ("The correct option is B", "B"),
    ("The best choice is option D.", "D"),
    ("Answer = B", "B"),
    ("The answer must be B if nothing leaks", "B"),
    ("The answer is A because it melts", "A"),
    ("The answer is A.", "A"),
    ("The answer is a", "A"),
    ("Answer: A\nA cat sat", "A"),
    ("Answer: (A) a cat", "A"),
    ("The answer is A, I think; no, the answer is B.", "B"),
    ("The answer is A or C.", "AC"),
    ("Well.\nA\nB\nC\nD", "ABCD"),
    ("(A)\n\n**B**", "AB"),
    ("B\nB", "B"),
    ("Answer: A, B, and D", "ABD"),
    ("The answer is B and that is final", "B"),
    ("The answer is B, a common acid.", "B"),
    ("The answer is B or not", "B"),
    ("The answer is a cat", ""),
    ("The answer is A cat", ""),
    ("The answer is C-terminal", ""),
    ("The answer is B12", ""),
    ("The answer is Carbon", ""),
    ("The answer is E", ""),
    ("The answer is not C", ""),
    ("Answer: I don't know", ""),
    # the last line
    ("Thinking.\nC", "C"),
    ("d", "D"),
    ("C.", "C"),
    ("**(b)**", "B"),
    ("So it must be (C).", "C"),
    (r"Thus \text{C}", "C"),
    (r"Hence $\text{(D)}$.", "D"),
    ("It is (C) or (A).", "AC"),
    ("(B) and not (B)", ""),
    ("A", "A"),
    ("A cat sat", ""),
    ("(C) is what we look at\nnext", ""),
    ("(D) none of these", "D"),
    ("I saw a", ""),
    ("f(c) = 2", ""),
    ("", ""),
    ("  \n", ""),
    ("I do not know.", ""),
    ("A.B", ""),
    # a letter with the text of its option
    ("B. 11", "B"),
    ("B) 11", "B"),
    ("(B) 11", "B"),
    ("**B. 11**", "B"),
    ("**B**. 11", "B"),
    ("**(B) 11**", "B"),
    ("Answer: B", "B"),
    ("Answer: B. 11", "B"),
    ("Answer: B) 11", "B"),
    ("**Answer: B. 11**", "B"),
    ("Option B", "B"),
    ("Option B. 11", "B"),
    ("B is correct.", "B"),
    ("(B) is the correct answer.", "B"),
    ("Option B is the right answer", "B"),
    ("(B)", "B"),
    ("b) 11", "B"),
    ("B. Vitamin A", "B"),
    (r"\boxed{B. Vitamin A}", "B"),
    ("A. A cat", "A"),
    ("B. 11\n\nBecause 5 and 6 are 11.", "B"),
    ("5 and 6 are 11.\n\nB. 11", "B"),
    ("A. 10\nB. 11\nC. 12\n\nB. 11", "B"),
    ("A. 10 is too small\nB. 11 fits\n\nB", "B"),
    ("A. 10\nB. 11\nSo it is (B).", "B"),
    ("The answer is B. A is too small.", "B"),
    ("The answer is B. (A) is too small.", "B"),
    ("The answer is B rather than A", "B"),
    ("The answer is B, not A.", "B"),
    ("The answer is (B) because (A) and (C) are too small.", "B"),
    ("The answer is probably B", "B"),
    ("The answer is the letter B", "B"),
    ("Answer: B\n\nA. 10 is too small.", "B"),
    (r"**Answer:** \(\boxed{B}\)", "B"),
    (r"\boxed{B}\n\nSo \boxed{B}", "B"),
    # a list that was cut off, or that is no answer
    ("A. 10\nB.", ""),
    ("A. 10\nB", ""),
    ("A) 10\nB)", ""),
    ("**A.** 10\n**B.**", ""),
    ("A. 10\nB. 11", ""),
    ("A. 10\nB. 11\nC. 12\nD. 13", ""),
    ("Options:\nA. 10\nB. 11\nC.", ""),
    ("(A) 10\n(B) 11\n(C) 12", ""),
    ("A. 10\n\nB. 11\n\nC", ""),
    ("A. 10 B.", "AB"),
    ("A. 10 B. 11 C. 12 D. 13", "ABCD"),
    ("(A) 10 (B) 11", "AB"),
    ("Answer:\nA\nB\nC\nD", "AB"),
    ("Answer: A. 10 B. 11", "AB"),
    ("The answer is:\nA. 10\nB. 11", "AB"),
    # hedges
    (r"\boxed{A|B|C|D}", "ABCD"),
    (r"\boxed{A..D}", "AD"),
    (r"\boxed{A...D}", "AD"),
    ("Answer: A..D", "AD"),
    (r"\boxed{A; B}", "AB"),
    (r"\boxed{A:B}", "AB"),
    (r"\boxed{A \lor B}", "AB"),
    (r"\boxed{A \text{ or } B}", "AB"),
    (r"\boxed{\text{A or B}}", "AB"),
    (r"\boxed{A \quad B}", "AB"),
    (r"\boxed{A B}", ""),
    (r"\boxed{B C}", "BC"),
    (r"\boxed{A\\B}", "AB"),
    (r"\boxed{A + B}", "AB"),
    (r"\boxed{B to D}", "BD"),
    (r"\boxed{A. 10 or B. 11}", "AB"),
    (r"\boxed{A (or B)}", "AB"),
    (r"\boxed{A (B)}", "AB"),
    (r"\boxed{AB}", ""),
    (r"\boxed{A-D}", ""),
    (r"\boxed{A} or \boxed{B}", "AB"),
    (r"\boxed{A}\boxed{B}", "AB"),
    (r"$\boxed{A}$, $\boxed{B}$ and $\boxed{C}$", "ABC"),
    (r"\boxed{A}" + "\n\n" + r"\boxed{B}", "AB"),
    ("A; B", ""),
    ("A:B", ""),
    ("Answer: A; B", "AB"),
    ("Answer: A|B", "AB"),
    ("Answer: A (or B)", "AB"),
    ("The answer is A, or perhaps B.", "AB"),
    ("The answer is A and possibly B.", "AB"),
    ("The answer is A. Or B.", "AB"),
    ("The answer is A. Maybe B.", "AB"),
    ("Answer: A\nOr B", "AB"),
    ("The answer is B unless C.", "BC"),
    ("The answer is A, also C", "AC"),
    ("The answer is either A or B", "AB"),
    ("The answer is both A and D", "AD"),
    # Of a statement 300 characters are read: C is the last of these, and the first behind them.
    ("The answer is A" + ", A" * 98 + " or C", "AC"),
    ("The answer is A" + ", A" * 99 + ", C", "A"),
    ("(D) Both A and B", "D"),
    ("D) Both A and B", "D"),
    ("The answer is (D) both A and B", "D"),
    (r"\boxed{D. \text{Both A and B}}", "D"),
    ("The answer is D (both A and B).", "D"),
    ("The answer is (A) (B)", "AB"),
    ("The answer is A/B/C", "ABC"),
    ("The answer is A & D", "AD"),
    ("Answer: A, or the answer is B", "AB"),
    ("B. 11 or C. 12", "BC"),
    ("(B) 11, maybe (C) 12", "BC"),
    ("**A** or **B**", ""),
    # nothing but a letter where the text of an option would stand
    (r"\boxed{A. B}", "AB"),
    (r"\boxed{A.B}", "AB"),
    (r"\boxed{A. B.}", "AB"),
    (r"\boxed{(A) B}", "AB"),
    (r"\boxed{A) (B)}", "AB"),
    (r"\boxed{\text{A. B}}", "AB"),
    (r"\boxed{A. \text{B}}", "AB"),
    (r"\boxed{A. not B}", "AB"),
    (r"\boxed{A: not B}", "AB"),
    (r"\boxed{B. A}", "AB"),
    ("Answer: A.B", "AB"),
    ("A. B", "AB"),
    ("The answer is A... D", "AD"),
    ("The answer is A ... D.", "AD"),
    ("The answer is A… D.", "AD"),
    (r"\boxed{A. C major}", "A"),
    (r"\boxed{A. A}", "A"),
    (r"\boxed{C. B cells}", "C"),
    ("Answer: C. D orbitals", "C"),
    ("The answer is A... But wait, that is all.", "A"),
    ("The answer is C... A cat has no such thing.", "C"),
    # in Chinese, and with a condition
    ("故选：B", "B"),
    ("故选:B。", "B"),
    ("故选（B）", "B"),
    ("因此，选项B正确，故选：B。", "B"),
    ("故不选：B", ""),
    ("故选：A、B", "AB"),
    ("The answer would be B if x=1.", ""),
    ("The answer is B only if x>0, else C", ""),
    ("The answer would be B.", "B"),
    # thoughts
    (r"<think>\boxed{A}</think>\boxed{B}", "B"),
    ("<think>The answer is A.</think>\nB. 11", "B"),
    (r"<think>It must be \boxed{A}, so", ""),
    ("<think>The answer is A.</think>", ""),
    ("It is A, I think.</think>\n\n(C)", "C"),
]


@pytest.fixture(scope="module")
def choice():
    return Choice()


def test_what_is_read(choice):
    found = {response: choice.letters_of(response) for response, _ in READ}
    assert len(found) == len(READ) >= 120
    assert [pair for pair in READ if found[pair[0]] != set(pair[1])] == []


def test_an_answer_may_have_the_text_of_its_option(choice):
    assert choice.score([r"\boxed{\text{Paris}}"], ["B. Paris"]).correct.all()
    responses = [
        r"so \boxed{11 m}",
        "The answer is **11 m**.",
        "Thus\n11 m",
        r"\boxed{12 m}",
        "B",
        "A",
    ]
    status = choice.score(responses, ["B. 11 m"] * 6).status.tolist()
    assert status == ["ok", "ok", "ok", "unparsed", "ok", "wrong"]
    assert choice.score([r"\boxed{B}"] * 2, ["(B) 11 m", "B"]).correct.all()
    # The letter with its text, which is a letter too, as of a note.
    notes = choice.score([r"\boxed{A. B}", "Answer: A. B", r"\boxed{A. B}"], ["A. B"] * 2 + ["A"])
    assert notes.status.tolist() == ["ok", "ok", "wrong"]


def test_scores_are_those_of_every_verifier(choice):
    scores = choice.score([r"\boxed{A}", r"\boxed{B}", r"\boxed{A, B}", "?"], ["A", "a", "A", "A"])
    assert isinstance(scores, Scores) and scores.status.tolist() == [
        "ok",
        "wrong",
        "wrong",
        "unparsed",
    ]
    assert scores.reward.tolist() == [1.0, 0.0, 0.0, 0.0] and scores.reward.dtype == float
    assert choice.score([], []).status.tolist() == []


def test_config_and_close():
    with Choice("ABCDE", max_chars=50) as choice:
        status = choice.score([r"\boxed{E}", "none"], ["E", "B"]).status
        assert status.tolist() == ["ok", "unparsed"]
        assert (
            choice.config == {"letters": "ABCDE", "max_chars": 50}
            and repr(choice) == "Choice(letters='ABCDE', max_chars=50)"
        )
    assert choice.letters_of(r"\boxed{A}" + "." * 60) == set(), "only the last characters are read"


FORMS = [
    r"\boxed{%s}",
    r"\boxed{\text{(%s)}}",
    "Answer: %s",
    "The answer is (%s).",
    "So we choose\n%s",
    "Therefore (%s)",
]
BEFORE = st.text(st.characters(exclude_characters="\\\r"), max_size=40)


@given(BEFORE, st.sampled_from("ABCD"), st.sampled_from(FORMS), st.booleans())
def test_a_clear_end_decides(before, gold, form, lower):
    response = before + "\n" + form % (gold.lower() if lower else gold)
    statement = Choice().letters_of(before)
    assert Choice().score([response], [gold]).status[0] == "ok" or (
        statement and "\\" not in form and "nswer" not in form
    )


@given(st.text(max_size=80), st.sampled_from("ABCD"))
def test_anything_a_model_writes_has_a_status(response, gold):
    found, scores = Choice().letters_of(response), Choice().score([response], [gold])
    assert found <= set("ABCD")
    assert scores.status[0] == ("unparsed" if not found else "ok" if found == {gold} else "wrong")
    assert scores.reward[0] == (scores.status[0] == "ok")


@given(
    st.lists(
        st.sampled_from(["cat", "sat", "the", "on", "mat", "is", "big", "a", "A"]),
        min_size=2,
        max_size=9,
    )
)
def test_words_are_no_letters(words):
    assert Choice().letters_of(" ".join([*words, "end"])) == set()


@given(st.permutations("ABCD"), st.sampled_from("ABCD"))
def test_renaming_letters_renames_the_verdict(order, said):
    renamed = dict(zip("ABCD", order))
    assert Choice().letters_of(rf"\boxed{{{renamed[said]}}}") == {renamed[said]}


@pytest.mark.parametrize(
    "attack, letters",
    [
        ("\\boxed{" * 2800, ""),
        ("\\boxed{{x}" * 1800, ""),
        ("{" * 9000 + "\\boxed{B}" + "{" * 9000, "B"),
        ("answer is " * 2000, ""),
        ("(" * 20_000, ""),
        ("answer:" + " *" * 9900 + "C", "C"),
        ("\\text{" * 3000, ""),
        ("(A)" + "*" * 19_000 + "x", "A"),
        ("answer: B" + "(" * 19_000, "B"),
        ("answer: B" + "\n" * 19_000, "B"),
        (r"\boxed{B" + "(" * 19_000 + "}", "B"),
        (r"\boxed{B}" + "|" * 19_000 + r"\boxed{C}", "BC"),
        ("answer is " + "A, " * 6000, "A"),
        ("\\boxed{x}" * 2000, ""),
        ("\n" * 19_000 + "B" + " " * 900, "B"),
        ("(B)" * 6000, "B"),
    ],
)
def test_hostile_text_ends(choice, attack, letters):
    assert choice.letters_of(attack) == set(letters), (
        "a pattern that backtracks would be seen as a test that takes minutes"
    )


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: Choice("A"), "letters='A'"),
        (lambda: Choice("abc"), "letters='abc'"),
        (lambda: Choice("AAB"), "letters='AAB'"),
        (lambda: Choice(max_chars=0), "max_chars=0"),
        (lambda: Choice().score(["x"], ["E"]), r"answers\[0\]='E'"),
        (lambda: Choice().score(["x"], ["AB"]), r"answers\[0\]='AB'"),
        (lambda: Choice().score(["x"], [""]), r"answers\[0\]"),
        (lambda: Choice().score("x", ["A"]), "responses"),
        (lambda: Choice().score([1], ["A"]), r"responses\[0\]=1"),
        (lambda: Choice().score(["x"], ["A", "B"]), "answers"),
    ],
)
def test_bad_arguments(call, named):
    with pytest.raises(ValueError, match=named):
        call()
