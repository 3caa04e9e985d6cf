"""Options that several commands have."""

from typing import Annotated

from typer import Option

from workbench.utils.names import LABS

Json = Annotated[bool, Option("--json", help="Print JSON and nothing else on stdout.")]
Out = Annotated[str, Option(help="Output directory. What stopped there goes on.")]
Seed = Annotated[int, Option(help="The seed of everything that is drawn at random.")]
Rounds = Annotated[int, Option(min=1, help="Total number of rounds, those already made included.")]
Lab = Annotated[
    list[str],
    Option(
        "--lab",
        metavar="NAME|NAME=VALUE",
        help=f"The lab ({', '.join(LABS)}), or an argument of it, as pool=1024. Problems of your "
        "own are problems.family=from_file and problems.path=FILE. Repeatable.",
    ),
]
Mixed = Annotated[
    bool, Option("--mixed", help="Go on with what other versions, code or devices have made.")
]
Trackers = Annotated[
    list[str],
    Option("--tracker", help="Log to it as well: tensorboard, wandb or trackio. Repeatable."),
]
Rates = Annotated[list[float], Option("--rate", help="A learning rate to try. Repeatable.")]
TuningSeeds = Annotated[int, Option(min=1, help="Seeds of the tuning.")]
Target = Annotated[
    float | None,
    Option(help="Held-out accuracy. Default: what the baseline has after 3/5 of the rounds."),
]
Jobs = Annotated[int | None, Option(min=1, help="Runs side by side. Default: one for each core.")]
Ray = Annotated[
    str | None,
    Option(metavar="ADDRESS", help="A Ray cluster: auto, its address, or local to start one here."),
]
Gpus = Annotated[float, Option(help="GPUs that each run takes on Ray.")]
Figure = Annotated[
    str | None, Option("--out", metavar="FIGURE", help="Write a figure, as .svg, .png or .pdf.")
]
