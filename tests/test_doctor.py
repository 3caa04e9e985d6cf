"""What doctor finds here, what it says of other machines, and its exit status."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import workbench as wb
from workbench.__main__ import main
from workbench.cli import doctor
from workbench.policies import memory
from workbench.policies.checks import check_gpu
from workbench.utils import machine
from workbench.utils.machine import install_command, installed_version, requirements

NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-aaaa, NVIDIA L40S, 46068, 45000, 580.95.05, 8.9"
echo "1, GPU-bbbb, NVIDIA H200, 143771, 143000, 580.95.05, 9.0"
"""


SMALL = ("--model", "SmolLM2-135M")


def invoke(*arguments):
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.fixture
def no_gpu(monkeypatch, tmp_path):
    """A search path without nvidia-smi and without a compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


@pytest.fixture
def two_gpus(no_gpu, monkeypatch):
    """A program nvidia-smi that reports two cards."""
    program = no_gpu / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")


def install(monkeypatch, **versions):
    """Pretend that these distributions have these versions, None for one that is missing.

    The others are as they are.
    """
    real = metadata.version

    def version(name):
        pretended = versions[name] if name in versions else real(name)
        if pretended is None:
            raise metadata.PackageNotFoundError(name)
        return pretended

    monkeypatch.setattr(metadata, "version", version)


EVERYTHING = {
    "unsloth": "2026.10.7",
    "unsloth-zoo": "2026.10.7",
    "vllm": "0.30.0",
    "vllm-bnb-plugin": "0.0.3",
    "bitsandbytes": "0.50.2",
    "torch": "2.13.0",
    "peft": "0.21.2",
    "trl": "1.14.2",
    "accelerate": "1.15.0",
}


def obstacles(lab, **options):
    return doctor.report(lab, **options)["obstacles"]


# The machine


def test_this_machine():
    here = doctor.this_machine()
    assert here["python"] == platform.python_version()
    assert 1 <= here["cores"] <= os.cpu_count()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**28 < here["memory"] <= physical
    assert here["torch"] == metadata.version("torch")


def test_gpus_as_nvidia_smi_prints_them(two_gpus):
    first, second = machine.gpus()
    assert first == {
        "name": "NVIDIA L40S",
        "bytes": 46068 * 2**20,
        "free": 45000 * 2**20,
        "driver": "580.95.05",
        "capability": "8.9",
    }
    assert second["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    "visible, names",
    [
        (None, ["L40S", "H200"]),
        ("1", ["H200"]),
        ("0,1", ["L40S", "H200"]),
        ("", []),
        ("-1", []),
        ("GPU-bb", ["H200"]),
        ("7", []),
        ("MIG-4bc3b16e-5cd7-5a4e-9a1f-2b3d4c5e6f70", ["L40S", "H200"]),
    ],
)
def test_only_visible_gpus_count(two_gpus, monkeypatch, visible, names):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"].removeprefix("NVIDIA ") for gpu in machine.gpus()] == names


def test_unified_memory_is_no_crash(two_gpus, no_gpu):
    line = "0, GPU-a, NVIDIA GB10, [N/A], [N/A], 580.1, 12.1"
    (no_gpu / "nvidia-smi").write_text(f"#!/bin/sh\necho '{line}'\n")
    [gpu] = machine.gpus()
    assert gpu["bytes"] == 0


def test_compiler(no_gpu, monkeypatch):
    assert machine.compiler() is None
    program = no_gpu / "clang"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert machine.compiler() == str(program)
    monkeypatch.setenv("CC", "clang -O2")
    assert machine.compiler() == str(program)


# Packages


def test_packages_of_pyproject():
    entries = {entry["name"]: entry for entry in doctor.packages()}
    assert entries["torch"]["state"] == "ok"
    assert entries["torch"]["extras"] == [""]
    assert sorted(entries["peft"]["extras"]) == ["gpu", "lora"]
    assert entries["numpy"]["version"] == metadata.version("numpy")


def test_versions_out_of_bounds_are_seen(monkeypatch):
    install(monkeypatch, torch="2.4.0", peft=None)
    states = {entry["name"]: entry["state"] for entry in doctor.packages()}
    assert states["torch"].startswith("out of bounds")
    assert states["peft"] == "missing"


def test_metadata_of_an_installed_package_says_the_same():
    lines = [
        "click<9,>=8.1",
        "peft<1,>=0.19; extra == 'lora'",
        "vllm>=0.27; (sys_platform == 'linux') and extra == 'gpu'",
        "never>=1; (sys_platform == 'plan9') and extra == 'gpu'",
    ]
    groups = requirements(lines)
    names = {extra: [each.name for each in group] for extra, group in groups.items()}
    expected = {"": ["click"], "lora": ["peft"]}
    if sys.platform == "linux":
        expected["gpu"] = ["vllm"]
    assert names == expected


def test_install_command_has_the_bounds():
    command = install_command(["peft", "something-else"])
    assert command == "pip install 'peft<0.22,>=0.19' something-else"


# What a lab needs


def test_the_labs_that_need_no_gpu_run_here():
    assert obstacles("tiny") == []
    assert obstacles("transformers") == []


def test_missing_packages_come_with_the_command(monkeypatch):
    install(monkeypatch, **{**EVERYTHING, "peft": None, "trl": None})
    assert "missing: peft, trl; install with: pip install 'peft<" in obstacles("unsloth")[-1]


def test_without_a_gpu(no_gpu, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    first, second = obstacles("unsloth")
    assert "nvidia-smi" in first
    assert "C compiler" in second
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert "Darwin" in machine.no_gpu()


def test_a_gpu_and_the_wrong_torch(two_gpus, monkeypatch):
    install(monkeypatch, **{**EVERYTHING, "torch": "2.13.0+cpu"})
    assert "torch 2.13.0+cpu has no CUDA" in machine.no_gpu()


def test_a_card_without_bfloat16_is_refused(two_gpus, no_gpu, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    assert machine.no_gpu() is None
    cards = NVIDIA_SMI.replace("8.9", "7.5")
    (no_gpu / "nvidia-smi").write_text(cards)
    assert machine.no_gpu() is None  # the other card has it
    (no_gpu / "nvidia-smi").write_text(cards.replace("9.0", "7.0"))
    assert "compute capability 7.5" in obstacles("unsloth")[0]
    with pytest.raises(ValueError, match=r"compute capability 7\.5"):
        check_gpu(None, "labs.unsloth")
    assert "compute capability 7.5" in obstacles("transformers")[0]
    problems = wb.problems.arithmetic(4)
    for device in (None, "cuda", "cuda:0"):
        for make in (wb.labs.unsloth, wb.labs.transformers):
            with pytest.raises(ValueError, match=r"compute capability 7\.5"):
                make("nobody/none", problems, device=device)
    wb.labs.transformers("nobody/none", problems, device="cpu")
    install(monkeypatch, **{**EVERYTHING, "torch": "2.13.0+cpu"})
    wb.labs.transformers("nobody/none", problems)  # this torch does not use the cards
    install(monkeypatch, **EVERYTHING)
    (no_gpu / "nvidia-smi").write_text(NVIDIA_SMI.replace("8.9", "[N/A]"))
    assert machine.no_gpu() is None


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 9\n"], ids=["none", "fails"])
def test_a_container_without_nvidia_smi_is_asked_by_torch(no_gpu, monkeypatch, program):
    install(monkeypatch, **EVERYTHING)
    if program:
        (no_gpu / "nvidia-smi").write_text(program)
        (no_gpu / "nvidia-smi").chmod(0o755)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    card = SimpleNamespace(name="NVIDIA H100", major=9, minor=0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (70 * 2**30, 80 * 2**30))
    assert machine.no_gpu() is None
    assert check_gpu(None, "labs.unsloth") == "cuda"
    [gpu] = machine.gpus()
    assert (gpu["name"], gpu["bytes"], gpu["capability"]) == ("NVIDIA H100", 80 * 2**30, "9.0")
    card.major = 7
    assert "compute capability 7.0" in machine.no_gpu()
    assert "compute capability 7.0" in invoke("--lab", "unsloth", *SMALL).stdout


@pytest.mark.parametrize(
    "gone, options, missing",
    [
        ("vllm", {}, True),
        ("vllm", {"fast_inference": False}, False),
        ("bitsandbytes", {}, False),
        ("bitsandbytes", {"load_in_4bit": True}, True),
        ("unsloth", {}, True),
        ("unsloth-zoo", {}, True),
        ("vllm-bnb-plugin", {}, False),
        ("vllm-bnb-plugin", {"load_in_4bit": True}, True),
        ("vllm-bnb-plugin", {"load_in_4bit": True, "fast_inference": False}, False),
        ("bitsandbytes", {"optimizer_bits": 8}, True),
    ],
)
def test_what_unsloth_needs(two_gpus, monkeypatch, gone, options, missing):
    install(monkeypatch, **{**EVERYTHING, gone: None})
    lines = [line for line in obstacles("unsloth", **options) if "install with" in line]
    assert len(lines) == missing
    for line in lines:
        assert f"missing: {gone};" in line


def test_an_old_driver_is_an_obstacle(two_gpus, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    monkeypatch.setenv("CC", sys.executable)  # any program that is there
    assert obstacles("unsloth") == []
    monkeypatch.setattr(doctor, "CUDA_DRIVER", 590)
    [line] = obstacles("unsloth")
    assert "580.95.05" in line and "590" in line
    # A torch for CUDA 12 runs on it.
    install(monkeypatch, **{**EVERYTHING, "torch": "2.11.0+cu126"})
    assert obstacles("unsloth") == []


@pytest.mark.slow
def test_vllm_in_the_lab_transformers_needs_what_it_needs_in_unsloth(no_gpu, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    install(monkeypatch, **{**EVERYTHING, "vllm": None, "peft": None})
    assert obstacles("transformers") == []
    lines = obstacles("transformers", engine="vllm")
    assert [line.split()[0] for line in lines] == ["an", "no", "missing:"]
    assert "missing: vllm; " in lines[-1]
    for options in ({"lora_rank": 8}, {"lora": {"lora_alpha": 16}}):
        assert "missing: peft, vllm; " in obstacles("transformers", engine="vllm", **options)[-1]


def test_a_gpu_that_another_program_fills_has_no_room(no_gpu, two_gpus, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    monkeypatch.setenv("CC", sys.executable)
    assert doctor.report("unsloth", "Qwen2.5-3B")["can_run"]
    program = no_gpu / "nvidia-smi"
    program.write_text(NVIDIA_SMI.replace("143000", "4000").replace("45000", "4000"))
    told = doctor.report("unsloth", "Qwen2.5-3B")
    assert "does not fit" in told["obstacles"][0]
    assert "4.2 GB free" in doctor.text(told)


def test_unknown_labs_and_options():
    with pytest.raises(ValueError, match="lab='cloud'"):
        obstacles("cloud")
    with pytest.raises(ValueError, match="max_lenght"):
        doctor.report("transformers", max_lenght=5)


def test_every_argument_of_a_lab_is_taken():
    assert doctor.settings_of("tiny", {"pool": 1024, "regime": "tight"})["lab"] == "tiny"
    given = {"lora": {"r": 64}, "device": "cuda", "learning_rate": 1e-5}
    assert doctor.settings_of("transformers", given)["lora_rank"] == 64


# Reports and the command line


def test_a_model_is_held_against_the_largest_gpu(two_gpus, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    monkeypatch.setenv("CC", sys.executable)  # any program that is there
    told = doctor.report("unsloth", "Qwen/Qwen2.5-3B-Instruct", load_in_4bit=True)
    assert told["can_run"]
    assert told["model"]["device"] == "NVIDIA H200"
    assert told["model"]["lora_parameters"] == 119_734_272
    # vLLM holds half of the GPU from the start, the weights included.
    half = 0.5 * told["model"]["room"]
    parts = memory.estimate("Qwen2.5-3B", load_in_4bit=True, sampler_bytes=half)
    assert told["model"]["bytes"] == parts
    assert parts["weights"] + parts["keys and values"] == pytest.approx(half, abs=1)


@pytest.mark.slow
def test_the_estimate_is_that_of_the_lab(two_gpus, monkeypatch):
    """What samples, whose weights it has, and whether layers are computed again."""
    install(monkeypatch, **EVERYTHING)
    name = "Qwen2.5-3B"

    def parts(lab, **options):
        return doctor.report(lab, name, **options)["model"]["bytes"]

    room = doctor.report("transformers", name)["model"]["room"]
    own = {"lora_rank": 0, "dtype": "float32"}
    assert parts("transformers") == memory.estimate(name, **own)
    whole = memory.estimate(name, gradient_checkpointing=False, **own)
    assert parts("transformers", gradient_checkpointing=False) == whole
    # vLLM has weights of its own there, inside of its share.
    by_vllm = parts("transformers", engine="vllm")
    assert by_vllm["keys and values"] == int(0.4 * room)
    assert by_vllm["weights"] == whole["weights"]
    assert by_vllm["drawing"] == 0
    by_generate = parts("unsloth", fast_inference=False, rollouts=1024)
    assert by_generate == memory.estimate(name, rollouts=1024, rows=256)
    monkeypatch.setattr(machine, "gpus", list)
    on_cpu = memory.estimate(name, gradient_checkpointing=False, autocast=False, **own)
    assert parts("transformers") == on_cpu


def test_a_model_that_does_not_fit_is_an_obstacle(two_gpus, monkeypatch):
    install(monkeypatch, **EVERYTHING)
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    told = doctor.report("unsloth", "Llama-3.1-8B", lora_rank=0)
    assert not told["can_run"]
    assert not told["model"]["fits"]
    assert "does not fit" in told["obstacles"][0]
    smaller = doctor.report("transformers", "Qwen2.5-3B")
    assert "does not fit: take LoRA" in smaller["obstacles"][0]
    assert doctor.report("transformers", "Qwen2.5-3B", lora_rank=64)["can_run"]
    # The tiny lab does not load the model.
    assert doctor.report("tiny", "Llama-3.1-8B", lora_rank=0)["can_run"]


def test_command_line_without_a_gpu(no_gpu, monkeypatch):
    install(monkeypatch, unsloth=None)
    result = invoke("--lab", "unsloth")
    assert result.exit_code == 1
    assert "lab unsloth: cannot run here" in result.output
    assert "pip install" in result.output
    assert invoke().exit_code == 0


def test_json_is_the_report():
    result = invoke("--json", *SMALL, "--lab", "lora_rank=8", "--lab", "max_length=256")
    told = json.loads(result.output)
    assert result.exit_code == 0
    assert told["can_run"]
    assert told["lab"] == "tiny"
    assert told["model"]["parameters"] == 134_515_008
    assert told["model"]["max_length"] == 256
    assert told["model"]["total"] == sum(told["model"]["bytes"].values())


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["--model", "no/such"], 1, "error: model='no/such'"),
        (["--model", "SmolLM2-135M", "--lab", "max_length=0"], 1, "max_length=0"),
        ([*SMALL, "--lab", "load_in_4bit=true", "--lab", "lora_rank=0"], 1, "quantised"),
        (["--lab", "cloud"], 1, "lab='cloud'"),
        (["--lab", "max_lenght=5"], 1, "max_lenght"),
        ([*SMALL, "--lab", "optimizer_bits=16"], 1, "optimizer_bits=16"),
        ([*SMALL, "--lab", "lora_rank=many"], 1, "lora_rank='many'"),
    ],
)
def test_errors_are_one_line(arguments, code, message):
    result = invoke(*arguments)
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_nothing_heavy_is_loaded():
    code = """
import sys
from workbench.cli import doctor

doctor.report("tiny", "Qwen2.5-3B")
heavy = {"torch", "transformers", "vllm", "unsloth", "pandas", "datasets"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Where torch is built for GPUs and there is no nvidia-smi, torch is asked whether it sees one.
    asks_torch = not installed_version("torch").endswith("+cpu") and not shutil.which("nvidia-smi")
    assert done.stdout.strip() == ("['torch']" if asks_torch else "[]")
