"""The files that install the package agree with each other."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import workbench

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
# What "one set of pins" means: the packages whose versions were chosen by hand to fit each other.
CHOSEN = """torch transformers trl datasets peft accelerate tokenizers math-verify reasoning-gym
    pandas pyarrow matplotlib seaborn jupyterlab papermill nbval""".split()


def pins(name: str) -> dict[str, str]:
    """The pins of a constraints file: {"torch": "2.13.0", ...}."""
    lines = [
        line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")
    ]
    found = dict(re.fullmatch(r"([\w.-]+)==([\w.+!-]+)", line).groups() for line in lines)
    assert len(found) == len(lines), f"{name} names a package twice"
    return {canonicalize_name(package): version for package, version in found.items()}


CPU, GPU = pins("constraints.txt"), pins("constraints-gpu.txt")
ASKED = [("", text) for text in PROJECT["dependencies"]]
ASKED += [(extra, text) for extra, texts in EXTRAS.items() for text in texts]


@pytest.mark.parametrize(("extra", "text"), ASKED)
def test_every_requirement_is_bounded_and_pinned(extra, text):
    requirement = Requirement(text)
    package = canonicalize_name(requirement.name)
    assert any(part.operator == ">=" for part in requirement.specifier), (
        f"{text} has no lower bound"
    )
    # What vLLM needs and what the package verifiers needs exclude each other.
    of_one = {"gpu": [GPU], "environments": [pins("constraints-environments.txt")]}
    for locked in of_one.get(extra, [CPU, GPU]):
        assert requirement.specifier.contains(locked[package]), (
            f"{text} does not admit the pin {locked[package]}"
        )


def test_both_pin_sets_agree():
    shared = CPU.keys() & GPU.keys()
    assert shared >= set(CHOSEN)
    assert {name: (CPU[name], GPU[name]) for name in shared if CPU[name] != GPU[name]} == {}


def test_torch_pin_admits_the_cpu_build():
    assert Requirement(f"torch=={CPU['torch']}").specifier.contains(Version(f"{CPU['torch']}+cpu"))


def test_extras_ask_for_the_same_versions():
    asked: dict[str, set[str]] = {}
    for _, text in ASKED:
        requirement = Requirement(text)
        asked.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    assert {name: bounds for name, bounds in asked.items() if len(bounds) > 1} == {}


def test_conda_brings_python_and_pip_alone():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    by_conda = [item for item in environment["dependencies"] if isinstance(item, str)]
    assert [re.split(r"[=<> ]", item)[0] for item in by_conda] == ["python", "pip"]
    version = by_conda[0].split("=")[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    [by_pip] = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    constraints, project = by_pip
    assert constraints == "-c constraints-gpu.txt"
    assert set(re.fullmatch(r"-e \.\[(.*)\]", project)[1].split(",")) <= EXTRAS.keys()


def test_what_the_conda_environment_asks_for_has_a_pin():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    project = next(item["pip"][1] for item in environment["dependencies"] if isinstance(item, dict))
    extras = {"", *re.fullmatch(r"-e \.\[(.*)\]", project)[1].split(",")}
    asked = [Requirement(text) for extra, text in ASKED if extra in extras]
    assert {"unsloth", "vllm", "bitsandbytes", "peft", "datasets", "torch"} <= {
        r.name for r in asked
    }
    assert [str(r) for r in asked if not r.specifier.contains(GPU[canonicalize_name(r.name)])] == []


# Of the test environments: what differs from the pins of the GPU, and what has to stay out.
ALONE = {
    "unsloth": (
        {"unsloth", "unsloth-zoo"},
        {"torch", "torchvision", "torchao", "xformers", "triton", "bitsandbytes"},
    ),
    "vllm": ({"setuptools"}, {"torch", "torchvision", "torchaudio", "torchcodec", "vllm"}),
}


@pytest.mark.parametrize("name", ALONE)
def test_the_test_environments_differ_from_the_gpu_in_what_they_must(name):
    found, (different, left_out) = pins(f"constraints-{name}.txt"), ALONE[name]
    assert {
        package for package in found if found[package] != GPU.get(package, found[package])
    } == different
    assert not left_out & found.keys()
    asked = [Requirement(text) for extra, text in ASKED if extra in ("", "lora", "tests")]
    assert {r.name for r in asked if canonicalize_name(r.name) not in found} == {
        "torch",
        "tensorboard",
    }


OWN_PINS = {"unsloth": ["unsloth", "unsloth-zoo"], "vllm": ["setuptools"]}


@pytest.mark.parametrize("name", OWN_PINS)
def test_the_test_environments_follow_the_pins_of_the_gpu(name, tmp_path):
    """`make lock` calls the program; today it changes nothing, and a pin that moves is renewed."""
    path = tmp_path / "constraints.txt"
    present = (ROOT / f"constraints-{name}.txt").read_text()
    package = next(each for each in pins(f"constraints-{name}.txt") if each in GPU)
    path.write_text(re.sub(rf"(?m)^{package}==.*$", f"{package}==0.0.1", present))
    assert path.read_text() != present
    command = [ROOT / ".ci/follow-pins", path, ROOT / "constraints-gpu.txt", *OWN_PINS[name]]
    subprocess.run(command, check=True)
    assert path.read_text() == present


def test_environments_have_the_pins_of_everything_else_where_both_name_a_package():
    own = pins("constraints-environments.txt")
    assert {name: own[name] for name in own.keys() & CPU.keys() if own[name] != CPU[name]} == {}
    assert "verifiers" in own


def test_the_shipped_model_and_the_notebooks_of_pages_go_into_the_wheel():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    pages = {f"notebooks/{name}.ipynb" for name in ("record", "trial")}
    assert set(build["only-include"]) == {"workbench", "data/models", *pages}
    assert all((ROOT / path).exists() for path in pages)
    assert build["sources"] == {
        "data/models": "workbench/_data/models",
        "notebooks": "workbench/_data/notebooks",
    }


# What an open project is expected to have

ARXIV = ("2504.13818", "2509.25808", "2509.25849", "2602.14338", "2602.08499")


def test_one_version_everywhere():
    assert PROJECT["version"] == workbench.__version__ == CITATION["version"]
    assert f"\n## {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert "urls" not in PROJECT, "an address is written here when there is one"


def test_the_papers_are_cited_alike_in_both_files():
    entries = re.split(r"\n@", (ROOT / "papers.bib").read_text())[1:]
    authors = {}
    for entry in entries:
        number = re.search(r"eprint = \{(.*?)\}", entry)[1]
        names = re.search(r"author = \{(.*?)\},\n", entry, re.DOTALL)[1]
        authors[number] = [" ".join(name.split()) for name in re.split(r"\s+and\s+", names)]
    assert sorted(authors) == sorted(ARXIV)
    cited = {
        each["identifiers"][0]["value"].removeprefix("arXiv:"): [
            f"{person['family-names']}, {person['given-names']}" for person in each["authors"]
        ]
        for each in CITATION["references"]
    }
    assert cited == authors
