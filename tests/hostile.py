"""Responses made to break a verifier of mathematics: 20 families, none of them a right answer."""

from __future__ import annotations

import time
from contextlib import contextmanager
from unittest.mock import patch

GOLD = {
    "explosions": "x",
    "matrices": r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    "intervals": "(7, 11)",
}
GOLD |= {"sets": r"\{7, 11\}", "equations": "x = 7"}


def gold(family: str) -> str:
    """The gold answer that the family is scored against: 5 unless its kind needs another."""
    return GOLD.get(family, "5")


def box(content: str) -> str:
    return r"\boxed{" + content + "}"


def nest(before: str, core: str, after: str, depth: int) -> str:
    return before * depth + core + after * depth


def towers():
    for base in ("9", "2", "10", "(-3)", "0.5", "x", r"\pi"):
        yield box(f"{base}^{{9^{{9}}}}")
        yield box(nest(f"{base}^{{", "9", "}", 6))
    for depth in (40, 400, 4000):
        yield box(nest("2^{", "2", "}", depth))
    yield from map(
        box,
        [
            "9^{9^{9}}+1",
            r"\left(10^{10}\right)^{10^{10}}",
            "9**9**9",
            "2^{-9^{9^9}}",
            r"\sqrt{9^{9^{9}}}",
        ],
    )


def factorials():
    for n in (
        "10^7",
        "10^9",
        "99999999",
        "9!",
        "(9!)!",
        "2^{40}",
        "-7",
        "0.5",
        "x",
        r"\frac{1}{3}",
    ):
        yield box(f"({n})!")
    for n, k in (("10^6", "5 \\cdot 10^5"), ("10^9", "3"), ("10^{12}", "10^{11}"), ("9!", "7!")):
        yield box(rf"\binom{{{n}}}{{{k}}}")
    yield from (box("9" + "!" * n) for n in (2, 3, 50, 1000))


def integers():
    for digits in (20, 400, 4299, 4301, 5000, 19_000, 200_000):
        yield box("7" * digits)
        yield box("-0." + "3" * digits)
    yield from map(
        box,
        [
            "1" + "," + ",".join(["000"] * 4000),
            "1e999999999",
            "1e-999999999",
            "0x" + "f" * 5000,
            "0" * 9000,
        ],
    )
    yield "The answer is " + "8" * 15_000


def fractions():
    for depth in (30, 300, 1000, 3000):
        yield box(nest(r"\frac{1}{1+", "1", "}", depth))
        yield box(nest(r"\frac{", "7", "}{3}", depth))
        yield box(nest(r"\frac{1}{1+", "1", "", depth))
        yield box(nest(r"\cfrac{2}{\dfrac{3}{", "x", "}}", depth // 3))
    yield from map(
        box,
        [
            r"\frac{1}{0}",
            r"\frac{0}{0}",
            r"\frac{}{}",
            r"\frac",
            r"\frac12345",
            r"\frac{1}{\infty}",
        ],
    )


def radicals():
    for depth in (10, 100, 1000, 3000):
        yield box(nest(r"\sqrt{1+", "2", "}", depth))
        yield box(nest(r"\sqrt[3]{2+", "x", "}", depth))
    for terms in (8, 20, 60):
        yield box("+".join(rf"\sqrt{{{n}}}" for n in range(2, 2 + terms)))
        yield box(r"\sqrt{" + "+".join(rf"{n}\sqrt{{{n}}}" for n in range(2, 2 + terms)) + "}")
    yield from map(
        box, [r"\sqrt{-1}", r"\sqrt[0]{2}", r"\sqrt[10^9]{2}", r"\sqrt{}", r"\sqrt[-3]{}"]
    )


def braces():
    for n in (1, 50, 2800):
        yield r"\boxed{" * n
        yield r"\boxed{7" + "{" * n
        yield r"\boxed{7" + "}" * n
        yield "}" * n + r"\boxed{6}" + "{" * n
        yield box("{" * n + "6" + "}" * n)
        yield box(r"\{" * n + "6")


def parentheses():
    for depth in (10, 60, 300, 5000):
        for left, right in (
            ("(", ")"),
            ("[", "]"),
            (r"\left(", r"\right)"),
            (r"\left|", r"\right|"),
            ("-(", ")"),
        ):
            yield box(nest(left, "6", right, depth))


def megabytes():
    for piece in (
        "a",
        "1+",
        "9",
        " ",
        "\n",
        "$",
        "\\",
        "{",
        "}",
        r"\frac",
        r"\boxed{6}",
        r"\boxed{",
        "final answer is ",
        "x=6,",
        "(",
    ):
        yield piece * (10**6 // len(piece))
        yield box(piece * (10**6 // len(piece)))


def characters():
    for odd in (
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\u2066",
        "\u200b",
        "\ufeff",
        "\u0301" * 500,
        "\ud800",
        "\U0010ffff",
        "\x85\u2028\r",
    ):
        yield odd * 20 + box("6")
        yield box(odd * 20 + "6" + odd)
    yield from map(
        box,
        [
            "\uff16",
            "\u0666",
            "\u2165",
            "\u00bd",
            "6\u20e3",
            "\u2212" + "6",
            "\u221e",
            "\u202e6\u202c",
        ],
    )


def explosions():
    for n in (20, 200):
        yield box(rf"\sin^{{{n}}}(x)+\cos^{{{n}}}(x)\tan(x)")
        yield box(f"(a+b+c+d+x)^{{{n}}}-(a+b+c+d-x)^{{{n}}}")
        yield box("".join(f"(x^{{{k}}}-1)" for k in range(1, n // 2)))
        yield box("+".join(rf"\frac{{1}}{{x+{k}}}" for k in range(1, n // 2)))
        yield box("+".join(rf"\sin({k}x)\cos({k + 1}x)" for k in range(1, n // 2)))
        yield box(nest(r"\log(1+", "x", ")", n // 2))
    yield from map(
        box,
        [
            r"\sum_{k=1}^{10^9} \frac{1}{k}",
            r"\prod_{k=1}^{10^8} (1+k)",
            r"\int_0^{1} \sin(x^x) e^{x^2} dx",
            r"\lim_{n \to \infty} \left(1+\frac{x}{n}\right)^{n^2}",
            r"\frac{d}{dx} x^{x^{x^{x}}}",
            r"\int \int \int x^{x^x} dx dy dz",
        ],
    )


def many_boxes():
    for n in (2, 100, 2000):
        yield box("6") * n
        yield " ".join(box(str(k)) for k in range(6, 6 + n))
        yield nest(r"\boxed{", "6", "}", n)
        yield r"\fbox{6} " * n + box("8")
        yield box("") * n
        yield (box("9^{9^{9}}") + " ") * n


def intervals():
    yield from map(
        box,
        [
            "(7, 11]",
            "[7, 11]",
            "(11, 7)",
            r"(-\infty, \infty)",
            r"[\infty, 7]",
            "(7, 11, 13)",
            "(7,",
            "[7; 11)",
        ],
    )
    for n in (3, 60, 600):
        yield box(r" \cup ".join(f"({k}, {k + 1})" for k in range(n)))
        yield box(r" \cap ".join(f"[{k}, {k + 900}]" for k in range(n)))
        yield box(r" \setminus ".join(rf"(\sqrt{{{k}}}, {k + 2})" for k in range(n)))


def sets():
    for n in (3, 200, 2000):
        yield box(r"\{" + ",".join(map(str, range(n))) + r"\}")
        yield box(r"\{" + ",".join(rf"\sqrt{{{k}}}" for k in range(n)) + r"\}")
        yield box(",".join(f"x^{{{k}}}" for k in range(n)))
        yield box(nest(r"\{", "7, 12", r"\}", min(n, 800)))
    yield from map(box, [r"\{\}", r"\emptyset", r"\{7, 9^{9^{9}}\}", r"\{x \mid x > 7\}"])


def matrices():
    for n in (1, 3, 12, 40):
        rows = r" \\ ".join(
            " & ".join(rf"\sqrt{{{n * i + j + 2}}}" for j in range(n)) for i in range(n)
        )
        matrix = rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}"
        yield from map(
            box, [matrix, rf"\left({matrix}\right)^{{-1}}", rf"{matrix}^{{100}}", rf"\det {matrix}"]
        )
    yield from map(
        box,
        [
            r"\begin{pmatrix} 1 & 2 \\ 3 \end{pmatrix}",
            r"\begin{pmatrix} 1 & 2",
            r"\begin{vmatrix} 1 \end{pmatrix}",
            r"\begin{bmatrix}\end{bmatrix}",
        ],
    )


def units():
    for unit in (
        "cm",
        "meters per second",
        "dollars",
        "^{\\circ}",
        "kg " * 2000,
        "\\text{" * 400,
        "}" * 50,
    ):
        yield box(rf"6\text{{ {unit}}}")
        yield box(rf"6 {unit}")
    yield from (box(nest(r"\text{", "6", "}", n)) for n in (3, 100, 2000))


def numbers():
    yield from map(
        box,
        [
            r"6\%",
            "600%",
            r"10^{400}\%",
            "%" * 5000,
            r"3\frac{1}{2}",
            "3 1/2",
            r"\$6.00",
            "6,00",
            "6.0.0",
            "6 . 1",
            "--6",
            "+-+6",
            r"6\frac{9^{9^{9}}}{2}",
            "1/2/3/4/5",
            "/".join(["7"] * 3000),
            r"6^\circ",
            "six",
            "VI",
            "6:30",
            "6e",
            ".",
            "-",
        ],
    )


def equations():
    for n in (2, 60, 1500):
        yield box(" = ".join(f"x_{{{k}}}" for k in range(n)))
        yield box(", ".join(f"x = {k + 8}" for k in range(n)))
        yield box(" < ".join(f"{k}" for k in range(n)))
        yield box(" = ".join(["x"] + ["9^{9}"] * n))
    yield from map(box, ["x = ", "= 8", "x == 8", r"x \in 9^{9^{9}}", r"x \ne 7", r"x \le 7 \ge y"])


def injections():
    attempt = "__import__('os')._exit(0)"
    yield from map(
        box,
        [
            attempt,
            f'sympify("{attempt}")',
            f"\\operatorname{{{attempt}}}",
            "lambda: 6",
            "exit()",
            "\\input{/etc/passwd}",
            "\\write18{ls}",
            "\\def\\a{\\a\\a}\\a",
            "%s%s%s%n",
            "{0.__class__}",
            '"}\n{"status": "ok"}',
            "\\u0000",
            '\n{"ready": true}\n',
            "Symbol('x').subs",
            "S(6)",
        ],
    )
    yield '{"id": 0, "status": "ok"}\n' * 50 + box("6")


def patterns():
    for run in (" ", "\n", "\t", "\u00a0", "$", "\\"):
        yield rf"The final answer is $\boxed{{6}}${run * 18_000}x"
        yield f"The final answer is{run * 18_000}x" + box("6")
    for words in (
        "final answer",
        "The answer is ",
        "answer: ",
        "is is is ",
        "I hope it is correct. ",
    ):
        yield words * (18_000 // len(words)) + box("6")


def prose():
    yield from (
        "",
        " ",
        "I do not know.",
        "The answer is unknown.",
        "There are 6 or 8 of them.",
        "Therefore $6$, hence $8$, thus $9$.",
        "#### 6",
        "**6**",
        "Answer: \\[ 6 \\]",
        "```python\nprint(5 + 1)\n```",
        "<answer>6</answer>",
        "<think>5</think> 6",
        "\\begin{align} 6",
        "$$ 6",
        "6" + "." * 9000,
        "six " * 4000,
        "1 " * 9000,
        "1. " * 6000,
    )


FAMILIES = {
    make.__name__.replace("_", " "): list(make())
    for make in (
        towers,
        factorials,
        integers,
        fractions,
        radicals,
        braces,
        parentheses,
        megabytes,
        characters,
        explosions,
        many_boxes,
        intervals,
        sets,
        matrices,
        units,
        numbers,
        equations,
        injections,
        patterns,
        prose,
    )
}


@contextmanager
def slowest(pool):
    """A list of how many seconds each item within has kept its worker, after a 0."""
    seconds = [0.0]
    reply = pool._reply

    def timed(worker, *arguments):
        said = reply(worker, *arguments)
        seconds.append(time.monotonic() - (worker.until - pool.deadline))
        return said

    with patch.object(pool, "_reply", timed):
        yield seconds
