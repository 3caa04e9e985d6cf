"""Options that several commands have."""

from typing import Annotated

from typer import Option

Json = Annotated[bool, Option("--json", help="Print JSON and nothing else on stdout.")]
Seed = Annotated[int, Option(help="Of everything that is drawn.")]
Rounds = Annotated[int, Option(min=1, help="Rounds in all.")]
Jobs = Annotated[int | None, Option(min=1, help="Runs side by side. Default: one for each core.")]
Ray = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="A Ray cluster: auto or its address, or local to start one on this machine.",
    ),
]
Figure = Annotated[
    str | None,
    Option("--out", metavar="FIGURE", help="Write a figure, as .svg, .png or .pdf."),
]
