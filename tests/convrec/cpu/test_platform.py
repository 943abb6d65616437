"""The CPU platform behaves, and the verl and vLLM code it stands on is the code that was read."""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from convrec.cpu import platform as platform_cpu
from convrec.runs import guard

# name -> (digest of its source, what to read again when it changes)
PINS = {
    # VERL_PLATFORM names the platform, "nvidia" where the driver's node has no GPU
    "_detect_platform_name": ("8dffc2174390e96d", "doctor.device_findings, docs/cluster.md"),
    # process group: ours is made first, and verl's call must then do nothing
    "initialize_global_process_group_ray": ("761a94d1a2e058d3", "platform_cpu.init_process_group"),
    # engine: the override changes engine_config.forward_only around it
    "FSDPEngine._build_fsdp_module": ("35b7b539858443e4", "platform_cpu.register_engine"),
    "EngineRegistry.register": ("6fd795c7149cb81d", "platform_cpu.register_engine"),
    # the one replaced function, and what it falls back to without flash-attn
    "logprobs_from_logits": ("dffd21fe40eb806b", "platform_cpu.log_probs_of_labels (signature, callers)"),
    "logprobs_from_logits_v2": ("1074be97faf338ae", "platform_cpu.use_whole_batch_log_probs (is it still a loop?)"),
    # replaced where flash-attn is missing; what the order of its groups is used for
    "prepare_micro_batches": ("e3083217530fed22", "micro_batches.prepare_micro_batches"),
    "FSDPEngine.forward_backward_batch": (
        "be92c8d155f0c179",
        "micro_batches.prepare_micro_batches (arguments, micro-batches a process)",
    ),
    "postprocess_batch_func": (
        "83c8d9c984b3c02a",
        "micro_batches.prepare_micro_batches (it restores the order by the groups)",
    ),
    "RolloutReplicaRegistry.register": ("283ce5dd7be73264", "platform_cpu.register_rollout"),
    # rollout server: replaced on a CPU host
    "vLLMColocateWorkerExtension.update_weights_from_ipc": ("21edd41f704fbb7b", "vllm_cpu.CPUWorkerExtension"),
    "BucketedWeightReceiver.receive_weights": (
        "229fcae433aeb2ae",
        "vllm_cpu.CPUWorkerExtension (it reuses its buffer)",
    ),
    "vLLMHttpServer._get_worker_extension_cls": ("f2a2ee36d2481803", "vllm_cpu.CPUHttpServer"),
    "vLLMReplica.__init__": ("a43756da3be14482", "vllm_cpu.CPUReplica (server_class)"),
    "UniProcExecutor._init_executor": ("7bdb84b8222a897e", "vllm_cpu.InProcessExecutor"),
    "GPUModelRunner.reload_weights": ("b173f581f73e39d7", "vllm_cpu.CPUWorkerExtension, repack_tied_head"),
    "UnquantizedEmbeddingMethod.process_weights_after_loading": ("3f18c9f56bcc9abd", "vllm_cpu.repack_tied_head"),
    # trainer: overridden, most with a call of super()
    "PPOTrainer.__init__": ("6f938d77859b66ae", "trainer.RankGRPOMixin.__init__ (replay_buffer)"),
    "PPOTrainer._init_tokenizer": ("c4c19f471702b827", "trainer.RankGRPOMixin._init_tokenizer"),
    "PPOTrainer._init_dataloader": (
        "86cf3749e087b883",
        "ConvRecMixin._init_dataloader (steps and epochs), RankGRPOMixin._init_dataloader (val_dataset)",
    ),
    "PPOTrainer._init_resource_pool_mgr": (
        "9eaa3bab711e4deb",
        "trainer.RankGRPOMixin._init_resource_pool_mgr (role_worker_mapping)",
    ),
    "PPOTrainer._load_checkpoint": (
        "bb446d77c48ac6cc",
        "trainer.RankGRPOMixin._load_checkpoint (the workers must be up)",
    ),
    "PPOTrainer._compute_old_log_prob": ("b2630e6178ed99f7", "trainer.RankGRPOMixin._compute_old_log_prob"),
    "PPOTrainer._compute_advantage": (
        "2a4a2aa4a475b228",
        "trainer.RankGRPOMixin._compute_advantage, _rollout_correction",
    ),
    "PPOTrainer._update_actor": ("d7009bd8a69d40b9", "trainer.RankGRPOMixin._update_actor"),
    "PPOTrainer._val_metrics_update": ("8cecd418b5011bfc", "trainer.RankGRPOMixin._val_metrics_update"),
    "PPOTrainerSeparateAsync._setup": ("792593a969da40cf", "trainer._WithoutFlush (is flush=True gone?)"),
    "CheckpointEngineWorker.__init__": ("c13ae6f24ae583c6", "vllm_cpu.CPUWeightsWorker (zmq_handle, process group)"),
    "RolloutReplica.get_ray_class_with_init_args": ("50dafe7818bfbb26", "vllm_cpu.CPUReplica"),
    "SFTTrainer.fit": ("88292f0424ff619b", "tracking.install (the same), ConvRecSFTTrainer (epochs, the last step)"),
    "SFTTrainer.__init__": ("dd1971b1909af414", "ConvRecSFTTrainer.__init__ (the state is loaded here)"),
    "SFTTrainer._init_engine": ("0140f0899f7f843a", "ConvRecSFTTrainer._init_engine (steps and epochs)"),
    "StatefulDataLoader.load_state_dict": ("10e7ad3304cc7176", "ConvRecSFTTrainer.__init__ (next_iter_state)"),
    "StatefulDataLoader._get_iterator": ("e4e230ab1471c8b0", "ConvRecSFTTrainer.__init__ (next_iter_state)"),
    "FSDPCheckpointManager.load_checkpoint": ("6f75218097c563a0", "saving.check_world_size (names of the shards)"),
    "ReplayBuffer.__init__": ("0c37a48629991988", "trainer.POLL_SECONDS (poll_interval)"),
    "ActorRolloutRefWorker.init_model": ("d1598903d82449f2", "worker.ConvRecWorker.init_model"),
    "TaskRunnerV1.run": ("26be986901db888b", "recipes.rank_grpo.train, which runs it in the driver's process"),
    "run_sft": ("5c028a6a2bc8c667", "recipes.sft.train, which does its steps"),
    # checkpoints, stops, lost processes
    "PPOTrainer._save_checkpoint": (
        "8c2435b577e54f19",
        "trainer.RankGRPOMixin._save_checkpoint, saving.save (the tracker is written last)",
    ),
    "PPOTrainer._validate": ("f1d58a70e91d7883", "trainer.RankGRPOMixin._validate"),
    "PPOTrainer.fit": (
        "7d83a81c2e62979f",
        "ConvRecMixin.fit, on_step_begin, on_step_end (order of save, log, validate); tracking.install (Tracking)",
    ),
    "ReplayBuffer._terminal_eviction_reasons": ("4ffdb3bccfea999a", "rollout.stop_on_failure"),
    "ReplayBufferAsync._terminal_eviction_reasons": ("dee4779773543c4c", "rollout.stop_on_failure"),
    "ReplayBuffer.sample": ("cdcecebeb7f0b44e", "rollout.stop_on_failure (what is called first after looking)"),
    "ReplayBufferAsync.wait_for_sampleable": (
        "5590a1b06f671763",
        "rollout.stop_on_failure (what is called first after looking)",
    ),
    "PPOTrainer._reissue_inflight_prompts": (
        "64f2191e335dec93",
        "rollout.retry_failed_prompts (pending ones are started)",
    ),
    "PPOTrainerSync.on_step_end": ("a759d37bd53da9f5", "ConvRecMixin.on_step_end (it wakes the rollout)"),
    "init": ("4a75f86c544eea7e", "rollout_queue.start (an existing controller is attached to)"),
    "_init_from_existing": ("ed43e32c550d3e6f", "rollout_queue._has_controller (the actor's name)"),
    "_maybe_create_tq_storage": ("f6fbfd4913af88d8", "rollout_queue.start, actors (_TQ_STORAGE)"),
    "initialize_simple_storage": ("9b21fbcd403341e4", "rollout_queue.actors (name -> handle)"),
    "PPOTrainer._maybe_log_val_generations": (
        "23d16817b64cf533",
        "tracking.keep_samples (what the logger is called with)",
    ),
    # its kl_loss is without the coefficient
    "ppo_loss": ("d7c0f8772b444f55", "curves.read_curves (actor/kl)"),
    "AgentLoopWorkerTQ._run_prompt": ("3d9bca6b0ea5fe25", "group_rollout.GroupedRollouts (statuses, n)"),
    "AgentLoopWorkerTQ.generate_sequences": (
        "4d7178988eae6a71",
        "group_rollout.GroupedRollouts._run_prompt (when it is started)",
    ),
    "AgentLoopWorkerTQ._agent_loop_postprocess": ("523edacbff73640d", "group_rollout.Rollout (fields and tags)"),
    "RewardLoopWorker.compute_score": (
        "163c1ca0102cfb2d",
        "group_rollout.GroupedRollouts.rewards_in_groups (it hands on what it gets)",
    ),
    "NaiveRewardManager.run_single": ("89e2c1e4e0d30a79", "reward_manager.GroupRewardManager"),
    "get_trajectory_info": ("b34f57ccb22fcb39", "group_rollout.GroupedRollouts.validate"),
    "LLMServerClient.generate": ("45f4cf4029f0be37", "group_rollout.GroupedRollouts._generate"),
    "AgentLoopManagerTQ.__init__": ("9f1e99d66170d332", "rollout.ConvRecAgentLoopManager"),
    "AgentLoopWorker._run_agent_loop": ("32c3d607c5d4c9fa", "rollout.ConvRecAgentLoopWorker"),
    "AgentLoopWorker._compute_score": ("cf4b57719ad3c1b2", "rollout.ConvRecAgentLoopWorker"),
    "vLLMHttpServer.launch_server": ("fff334de2369bfa0", "vllm_server.ConvRecHttpServer (self.engine)"),
    "SingleTurnAgentLoop.run": (
        "1baec41cee2de25f",
        "dataset.ConvRecDataset (how a row's prompt is tokenized), group_rollout.GroupedRollouts._output",
    ),
}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Name -> source. The imports take about 15 s, once."""
    from transfer_queue import interface
    from transfer_queue.storage.bootstrap.simple_storage_bootstrap import initialize_simple_storage
    from verl.checkpoint_engine.base import CheckpointEngineWorker
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, get_trajectory_info
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.plugin.platform.platform_manager import _detect_platform_name
    from verl.trainer.main_ppo import TaskRunnerV1
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.trainer.sft_trainer import SFTTrainer, StatefulDataLoader, run_sft
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.utils.torch_functional import logprobs_from_logits, logprobs_from_logits_v2
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
    from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
    from verl.workers.utils.losses import ppo_loss
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.v1.executor.uniproc_executor import UniProcExecutor
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    task_runner = TaskRunnerV1.__ray_metadata__.modified_class
    objects: list[Callable[..., Any]] = [
        _detect_platform_name,
        initialize_global_process_group_ray,
        run_sft,
        SFTTrainer.fit,
        SFTTrainer.__init__,
        SFTTrainer._init_engine,
        StatefulDataLoader.load_state_dict,
        StatefulDataLoader._get_iterator,
        FSDPCheckpointManager.load_checkpoint,
        PPOTrainerSeparateAsync._setup,
        CheckpointEngineWorker.__init__,
        RolloutReplica.get_ray_class_with_init_args,
        logprobs_from_logits,
        logprobs_from_logits_v2,
        FSDPEngine._build_fsdp_module,
        FSDPEngine.forward_backward_batch,
        prepare_micro_batches,
        postprocess_batch_func,
        UniProcExecutor._init_executor,
        EngineRegistry.register,
        RolloutReplicaRegistry.register,
        vLLMColocateWorkerExtension.update_weights_from_ipc,
        BucketedWeightReceiver.receive_weights,
        vLLMHttpServer._get_worker_extension_cls,
        vLLMReplica.__init__,
        GPUModelRunner.reload_weights,
        UnquantizedEmbeddingMethod.process_weights_after_loading,
        ReplayBuffer.__init__,
        ReplayBuffer._terminal_eviction_reasons,
        ReplayBufferAsync._terminal_eviction_reasons,
        ReplayBuffer.sample,
        ReplayBufferAsync.wait_for_sampleable,
        PPOTrainerSync.on_step_end,
        interface.init,
        interface._init_from_existing,
        interface._maybe_create_tq_storage,
        initialize_simple_storage,
        AgentLoopWorkerTQ.__ray_metadata__.modified_class._run_prompt,
        AgentLoopWorkerTQ.__ray_metadata__.modified_class.generate_sequences,
        AgentLoopWorkerTQ.__ray_metadata__.modified_class._agent_loop_postprocess,
        RewardLoopWorker.compute_score,
        NaiveRewardManager.run_single,
        get_trajectory_info,
        LLMServerClient.generate,
        AgentLoopManagerTQ.__init__,
        AgentLoopWorker._run_agent_loop,
        AgentLoopWorker._compute_score,
        vLLMHttpServer.launch_server,
        ActorRolloutRefWorker.init_model,
        ppo_loss,
        task_runner.run,
        SingleTurnAgentLoop.run,
    ]
    objects += [getattr(PPOTrainer, name.split(".")[1]) for name in PINS if name.startswith("PPOTrainer.")]
    return {inspect.unwrap(item).__qualname__: inspect.getsource(inspect.unwrap(item)) for item in objects}


@pytest.mark.parametrize("name", PINS)
def test_what_we_stand_on_is_what_was_read(name: str, sources: dict[str, str]) -> None:
    pinned, reader = PINS[name]
    digest = hashlib.sha256(sources[name].encode()).hexdigest()[:16]
    assert digest == pinned, (
        f"{name} has changed: read it again together with {reader}, mend what no longer holds, "
        f"and pin {digest} in {__name__}"
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_log_probs_of_labels_are_verls(dtype: torch.dtype, tolerance: float) -> None:
    from verl.utils.torch_functional import logprobs_from_logits_v2

    logits = (30 * torch.randn(7, 50, generator=torch.Generator().manual_seed(0), dtype=dtype)).requires_grad_()
    labels = torch.arange(7)
    ours, theirs = platform_cpu.log_probs_of_labels(logits, labels), logprobs_from_logits_v2(logits, labels)
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    weights = torch.arange(7, dtype=dtype)
    (ours_grad,) = torch.autograd.grad((ours * weights).sum(), logits)
    (theirs_grad,) = torch.autograd.grad((theirs * weights).sum(), logits)
    torch.testing.assert_close(ours_grad, theirs_grad, atol=tolerance, rtol=0)


def test_platform_is_registered_by_importing_verl() -> None:
    """Through the entry point `verl.plugins`, which every process that imports verl loads."""
    from importlib.metadata import entry_points

    (entry,) = [entry for entry in entry_points(group="verl.plugins") if entry.name == "convrec"]
    assert entry.load().platform_cpu is platform_cpu


def test_platform_says_what_verl_asks() -> None:
    platform = platform_cpu.PlatformCPU()
    assert (platform.current_device(), platform.device_count()) == ("cpu", 1)
    assert platform.communication_backend_name() == "gloo"
    assert platform.ray_resource_name() == "GPU"
    assert not platform.is_ipc_supported()
    assert torch.zeros(1).to(platform.current_device()).device.type == "cpu"
    free, total = platform.device_module.mem_get_info()
    assert 0 < free <= total
    assert 0 < platform.device_module.memory_allocated() < total


def test_random_state_of_the_device_is_the_cpus() -> None:
    device = platform_cpu.PlatformCPU.device_module
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(("value", "expected"), [("cpu", True), (" CPU ", True), ("cuda", False), (None, False)])
def test_a_cpu_host_is_one_where_verl_is_told_so(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool
) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    if value is not None:
        monkeypatch.setenv("VERL_PLATFORM", value)
    assert platform_cpu.is_cpu_host() is expected


def test_process_group_is_plain_gloo_made_once_and_listens_on_the_loopback_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from verl.utils.distributed import initialize_global_process_group_ray

    group = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (group | {guard.FOLDER_VARIABLE: str(tmp_path), "GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIST_INIT_METHOD", "restored afterwards")
    before = listening()
    platform_cpu.init_process_group()
    try:
        assert torch.distributed.get_backend() == "gloo"
        initialize_global_process_group_ray()  # verl's own call finds it done
        assert {ip for ip, _ in listening() - before} <= {"127.0.0.1"}
    finally:
        torch.distributed.destroy_process_group()


def listening() -> set[tuple[str, int]]:
    return {tuple(c.laddr) for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"}


@pytest.mark.usefixtures("sources")
def test_engine_for_cpu_is_registered_once() -> None:
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    platform_cpu.register_engine()
    engine = EngineRegistry._engines["language_model"]["fsdp2"]["cpu"]
    platform_cpu.register_engine()
    assert EngineRegistry._engines["language_model"]["fsdp2"]["cpu"] is engine
    assert issubclass(engine, FSDPEngineWithLMHead)


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("fails", [False, True])
def test_engine_builds_a_forward_only_model_as_a_resident_one(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """And gives the setting back, whatever happens."""
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    platform_cpu.register_engine()
    engine = object.__new__(EngineRegistry._engines["language_model"]["fsdp2"]["cpu"])
    engine.engine_config = SimpleNamespace(forward_only=True)
    seen = []

    def build(self: Any, module: Any) -> Any:
        seen.append(self.engine_config.forward_only)
        if fails:
            raise ValueError("no memory")
        return module

    monkeypatch.setattr(FSDPEngineWithLMHead, "_build_fsdp_module", build)
    if fails:
        with pytest.raises(ValueError, match="no memory"):
            engine._build_fsdp_module("module")
    else:
        assert engine._build_fsdp_module("module") == "module"
    assert seen == [False]
    assert engine.engine_config.forward_only


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("tied", [True, False])
def test_only_a_tied_head_is_packed_again(tied: bool) -> None:
    from convrec.cpu.server import repack_tied_head

    packed = []
    head = SimpleNamespace(quant_method=SimpleNamespace(process_weights_after_loading=packed.append))
    repack_tied_head(SimpleNamespace(lm_head=head, config=SimpleNamespace(tie_word_embeddings=tied)))
    assert packed == ([head] if tied else [])


@pytest.mark.usefixtures("sources")
def test_the_rollout_server_names_our_worker_extension() -> None:
    from convrec.cpu.server import CPUHttpServer, CPUWorkerExtension

    path = CPUHttpServer._get_worker_extension_cls(object.__new__(CPUHttpServer))
    module, name = path.rsplit(".", 1)
    assert (module, name) == (CPUWorkerExtension.__module__, "CPUWorkerExtension")
