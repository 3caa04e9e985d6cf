"""A method in verl's trainer on one CPU: Ray, FSDP and the tiny model, at the smallest scale.

    python examples/verl_run.py --method pods --arguments '{"n": 8, "m": 4}' --steps 2 --out runs/verl

Needs the environment of `make test-verl`. The two lines that matter are `configuration(method)` and `run_ppo`: the rest is
what every run of verl says of model, data and machine, here as small as it goes. On GPUs use verl_pods.yaml instead.
"""

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# before verl is imported here and, since Ray hands the environment on, in every worker
os.environ.update(
    VERL_PLATFORM="cpu",
    VERL_USE_EXTERNAL_MODULES="verl_cpu",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
)
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent)])
sys.path.insert(0, str(HERE))


def data(path, n):
    """n arithmetic problems in the columns that verl reads."""
    import pandas as pd

    from workbench.problems import arithmetic

    rows = [
        {
            "prompt": [{"role": "user", "content": problem.prompt}],
            "data_source": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": i},
        }
        for i, problem in enumerate(arithmetic(n, levels=(1, 2, 3)))
    ]
    pd.DataFrame(rows).to_parquet(path)
    return str(path)


def small(out, steps, resume):
    """Model, data, batch sizes and machine."""
    from workbench.labs import shipped

    file, actor, rollout = (
        data(out / "train.parquet", 16),
        "actor_rollout_ref.actor",
        "actor_rollout_ref.rollout",
    )
    return {
        "data.train_files": file,
        "data.val_files": file,
        "data.train_batch_size": 4,
        "data.shuffle": False,
        "data.max_prompt_length": 32,
        "data.max_response_length": 24,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": str(shipped("models/tiny")),
        "actor_rollout_ref.model.custom_chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        "actor_rollout_ref.model.override_config.attn_implementation": "eager",
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.fsdp_config.model_dtype": "fp32",
        f"{actor}.fsdp_config.dtype": "float32",
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{actor}.optim.lr": 1e-4,
        f"{actor}.ppo_mini_batch_size": 4,
        f"{actor}.ppo_micro_batch_size_per_gpu": 4,
        f"{rollout}.name": "transformers",
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": 4,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": "pkg://verl_cpu",
        "reward.custom_reward_function.name": "reward",
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.logger": ["console"],
        "trainer.val_before_train": True,
        "trainer.test_freq": -1,
        "trainer.save_freq": 1,
        "trainer.total_epochs": 100,
        "trainer.total_training_steps": steps,
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.resume_mode": "auto" if resume else "disable",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 32,
        "ray_kwargs.ray_init.num_gpus": 1,
        "ray_kwargs.ray_init.include_dashboard": False,
    }


def main():
    """Reads the arguments and trains."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from workbench import verl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="pods")
    parser.add_argument("--arguments", type=json.loads, default={"n": 8, "m": 4})
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    method = verl.method_of({"method": given.method, "arguments": given.arguments})
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    for key, value in {
        **verl.configuration(method),
        **small(given.out.resolve(), given.steps, given.resume),
    }.items():
        OmegaConf.update(config, key, value)
    OmegaConf.set_struct(config, True)
    run_ppo(config, task_runner_class=TaskRunnerV1)


if __name__ == "__main__":
    main()
