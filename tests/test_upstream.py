"""The verl, vLLM and TransferQueue code that we override, replace or rely on is the code that was read."""

import hashlib
import importlib
import inspect
from functools import reduce
from typing import Any, NamedTuple

import pytest


class Pin(NamedTuple):
    """upstream: `module:qualified name` of theirs. digest: of its source. ours: what to read again when it changes."""

    upstream: str
    digest: str
    ours: tuple[str, ...]
    note: str = ""


PINS = (
    # VERL_PLATFORM names the platform, "nvidia" where the driver's node has no GPU
    Pin(
        "verl.plugin.platform.platform_manager:_detect_platform_name",
        "8dffc2174390e96d",
        ("recipes.preflight.findings:device_findings",),
        "docs/how-to/cluster.md too",
    ),
    # process group: ours is made first, and verl's call must then do nothing
    Pin(
        "verl.utils.distributed:initialize_global_process_group_ray",
        "761a94d1a2e058d3",
        ("convrec.cpu.process_group:init_process_group",),
    ),
    # engine: the override changes engine_config.forward_only around it
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module",
        "35b7b539858443e4",
        ("convrec.cpu.engine:register_engine",),
    ),
    Pin(
        "verl.workers.engine.base:EngineRegistry.register", "6fd795c7149cb81d", ("convrec.cpu.engine:register_engine",)
    ),
    # log-probs under the constraint: the forward of the fused kernels with other contents
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs",
        "e7a30a3b61b58c8b",
        ("convrec.training.constrained_engine:constrain",),
        "places of hidden states, packed and padded; what the forward is called with",
    ),
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs",
        "5239f536e8f617e3",
        ("convrec.training.constrained_engine:constrain",),
        "use_fused_kernels: log_probs and entropy of the forward's output",
    ),
    Pin(
        "verl.trainer.ppo.padding_utils:construct_minimal_padding_template",
        "31f96671a0742859",
        ("convrec.training.constrained_engine:choices_of",),
        "response_mask 0",
    ),
    # replaced where flash-attn is missing
    Pin(
        "verl.utils.torch_functional:logprobs_from_logits",
        "dffd21fe40eb806b",
        ("convrec.training.attention.without_flash:log_probs_of_labels",),
        "signature, callers",
    ),
    Pin(
        "verl.utils.torch_functional:logprobs_from_logits_v2",
        "1074be97faf338ae",
        ("convrec.training.attention.without_flash:use_whole_batch_log_probs",),
        "is it still a loop?",
    ),
    Pin(
        "verl.workers.engine.utils:prepare_micro_batches",
        "e3083217530fed22",
        ("convrec.training.attention.without_flash:prepare_micro_batches",),
    ),
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch",
        "be92c8d155f0c179",
        (
            "convrec.training.attention.without_flash:prepare_micro_batches",
            "convrec.training.loss:rank_grpo_loss",
        ),
        "arguments, micro-batches a process; batch_num_tokens counts loss_mask",
    ),
    Pin(
        "verl.workers.engine.utils:postprocess_batch_func",
        "83c8d9c984b3c02a",
        ("convrec.training.attention.without_flash:prepare_micro_batches",),
        "it restores the order by the groups",
    ),
    # rollout server: replaced on a CPU host
    Pin(
        "verl.workers.rollout.replica:RolloutReplicaRegistry.register",
        "283ce5dd7be73264",
        ("convrec.training.registration:register_rollout",),
    ),
    Pin(
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc",
        "21edd41f704fbb7b",
        ("convrec.cpu.server:CPUWorkerExtension",),
    ),
    Pin(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights",
        "229fcae433aeb2ae",
        ("convrec.cpu.server:CPUWorkerExtension",),
        "it reuses its buffer",
    ),
    Pin(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer._get_worker_extension_cls",
        "f2a2ee36d2481803",
        ("convrec.cpu.server:CPUHttpServer",),
    ),
    Pin(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.__init__",
        "a43756da3be14482",
        ("convrec.rollout.server:ConvRecReplica.__init__",),
        "server_class",
    ),
    Pin(
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server",
        "fff334de2369bfa0",
        ("convrec.rollout.server:ConvRecHttpServer.launch_server",),
        "self.engine",
    ),
    Pin(
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor",
        "7bdb84b8222a897e",
        ("convrec.generation.executor:InProcessExecutor",),
    ),
    Pin(
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._distributed_args",
        "a4481722f33ed1c6",
        ("convrec.generation.executor:InProcessExecutor._distributed_args",),
    ),
    Pin(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights",
        "edf5d7a47bad9843",
        ("convrec.cpu.server:CPUWorkerExtension",),
    ),
    Pin(
        "verl.checkpoint_engine.base:CheckpointEngineWorker.__init__",
        "c13ae6f24ae583c6",
        ("convrec.cpu.server:CPUWeightsWorker",),
        "zmq_handle, process group",
    ),
    Pin(
        "verl.workers.rollout.replica:RolloutReplica.get_ray_class_with_init_args",
        "50dafe7818bfbb26",
        ("convrec.cpu.server:CPUReplica",),
    ),
    # trainer: overridden, most with a call of super()
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.__init__",
        "6f938d77859b66ae",
        (
            "convrec.training.trainer_base:ConvRecMixin.__init__",
            "convrec.training.rank_trainer:RankGRPOMixin.__init__",
        ),
        "replay_buffer",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_tokenizer",
        "c4c19f471702b827",
        ("convrec.training.rank_trainer:RankGRPOMixin._init_tokenizer",),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader",
        "86cf3749e087b883",
        (
            "convrec.training.trainer_base:ConvRecMixin._init_dataloader",
            "convrec.training.rank_trainer:RankGRPOMixin._init_dataloader",
        ),
        "steps and epochs; val_dataset",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_resource_pool_mgr",
        "9eaa3bab711e4deb",
        ("convrec.training.trainer_base:ConvRecMixin._init_resource_pool_mgr",),
        "role_worker_mapping",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint",
        "bb446d77c48ac6cc",
        ("convrec.training.trainer_base:ConvRecMixin._load_checkpoint",),
        "the workers must be up",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob",
        "b2630e6178ed99f7",
        (
            "convrec.training.trainer_base:ConvRecMixin._compute_old_log_prob",
            "convrec.training.trainer_base:ConvRecMixin._check_rollout",
            "convrec.training.rank_trainer:RankGRPOMixin._compute_old_log_prob",
        ),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage",
        "2a4a2aa4a475b228",
        (
            "convrec.training.rank_trainer:RankGRPOMixin._compute_advantage",
            "convrec.training.rank_trainer:RankGRPOMixin._rollout_correction",
        ),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor",
        "d7009bd8a69d40b9",
        ("convrec.training.rank_trainer:RankGRPOMixin._update_actor",),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._val_metrics_update",
        "8cecd418b5011bfc",
        ("convrec.training.trainer_base:ConvRecMixin._val_metrics_update",),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate",
        "f1d58a70e91d7883",
        ("convrec.training.trainer_base:ConvRecMixin._validate",),
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync._setup",
        "792593a969da40cf",
        ("convrec.training.rank_trainer:_WithoutFlush",),
        "is flush=True gone?",
    ),
    Pin(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__",
        "0c37a48629991988",
        ("convrec.training.trainer_base:POLL_SECONDS",),
        "poll_interval",
    ),
    Pin(
        "verl.workers.engine_workers:ActorRolloutRefWorker.init_model",
        "d1598903d82449f2",
        ("convrec.training.worker:ConvRecWorker.init_model",),
    ),
    Pin(
        "verl.trainer.main_ppo:TaskRunnerV1.run",
        "26be986901db888b",
        ("recipes.launch.ray_training:train",),
        "which runs it in the driver's process",
    ),
    Pin(
        "verl.workers.utils.losses:ppo_loss",
        "d7c0f8772b444f55",
        ("convrec.report.curves:read_curves",),
        "actor/kl: its kl_loss is without the coefficient",
    ),
    # learning rate
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lr_scheduler",
        "3a9dd2e4f0894732",
        ("convrec.training.worker:set_learning_rate",),
        "a LambdaLR",
    ),
    Pin(
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.lr_scheduler_step",
        "5df166dad20babd5",
        ("convrec.training.worker:set_learning_rate",),
        "which replaces it",
    ),
    Pin(
        "verl.workers.engine_workers:TrainingWorker.train_mini_batch",
        "02b50b03fe7d8d29",
        ("convrec.training.worker:set_learning_rate",),
        "the schedule advances once a call",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.step",
        "e22f53aadb7805d2",
        (
            "convrec.training.trainer_base:ConvRecMixin._load_checkpoint",
            "convrec.training.unlogged:KeepsUnlogged.step",
        ),
        "parameter_sync_step updates a step; it fills the metrics before it returns",
    ),
    # SFT
    Pin(
        "verl.trainer.sft_trainer:run_sft",
        "5c028a6a2bc8c667",
        ("recipes.launch.sft_training:_train_here",),
        "which does its steps",
    ),
    Pin(
        "verl.trainer.sft_trainer:SFTTrainer.fit",
        "88292f0424ff619b",
        (
            "convrec.training.trackers.tracking:install",
            "convrec.training.sft.trainer:ConvRecSFTTrainer",
        ),
        "epochs, the last step",
    ),
    Pin(
        "verl.trainer.sft_trainer:SFTTrainer.__init__",
        "dd1971b1909af414",
        ("convrec.training.sft.trainer:SFTMixin.__init__",),
        "the state is loaded here",
    ),
    Pin(
        "verl.trainer.sft_trainer:SFTTrainer._init_engine",
        "0140f0899f7f843a",
        ("convrec.training.sft.trainer:ConvRecSFTTrainer._init_engine",),
        "steps and epochs",
    ),
    Pin(
        "verl.trainer.sft_trainer:SFTTrainer._get_lora_train_meta",
        "465aaf46c206cc98",
        ("convrec.training.sft.on_ray:ConvRecRaySFTTrainer._build_ckpt_handler",),
        "called without its trainer",
    ),
    Pin(
        "verl.trainer.sft_trainer_ray:SFTTrainer.__init__",
        "c2b69fee7f6cac2c",
        ("convrec.training.sft.on_ray:ConvRecRaySFTTrainer.__init__",),
        "the state is loaded here",
    ),
    Pin(
        "verl.trainer.sft_trainer_ray:SFTTrainer.fit",
        "2f83522cc05eb96d",
        ("convrec.training.sft.trainer:SFTMixin.fit", "convrec.training.sft.on_ray:ConvRecRaySFTTrainer.__init__"),
        "epochs, the last step; it waits for each answer at once",
    ),
    Pin(
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_dataloader",
        "f14c93be79994080",
        ("convrec.training.sft.trainer:SFTMixin._build_dataloader",),
        "the loaders are replaced; steps and epochs",
    ),
    Pin(
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_engine",
        "2db810b684ef2524",
        ("convrec.training.sft.on_ray:ConvRecRaySFTTrainer._build_engine",),
        "which does its steps",
    ),
    Pin(
        "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler.save_checkpoint",
        "3e967ed50a7b0298",
        ("convrec.training.sft.trainer:SFTMixin._build_ckpt_handler",),
        "what a step folder has; data_0.pt",
    ),
    Pin(
        "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader.load_state_dict",
        "10e7ad3304cc7176",
        ("convrec.training.sft.trainer:SFTMixin.__init__",),
        "next_iter_state",
    ),
    Pin(
        "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader._get_iterator",
        "e4e230ab1471c8b0",
        ("convrec.training.sft.trainer:SFTMixin.__init__",),
        "next_iter_state",
    ),
    # checkpoints, stops, lost processes
    Pin(
        "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint",
        "6f75218097c563a0",
        (
            "convrec.checkpoints.reshard:load_resharded",
            "convrec.training.worker:set_learning_rate",
        ),
        "names of the shards; optimizer and schedule come back",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint",
        "8c2435b577e54f19",
        (
            "convrec.training.trainer_base:ConvRecMixin._save_checkpoint",
            "convrec.checkpoints.saving:save",
        ),
        "the tracker is written last",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit",
        "7d83a81c2e62979f",
        (
            "convrec.training.trainer_base:ConvRecMixin.fit",
            "convrec.training.trainer_base:ConvRecMixin.on_step_begin",
            "convrec.training.trainer_base:ConvRecMixin.on_step_end",
            "convrec.training.trackers.tracking:install",
            "convrec.training.unlogged:KeepsUnlogged._make_up_validation",
        ),
        "order of save, log, validate; Tracking; after the last step it trains nothing",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_metrics",
        "9c5c555787889555",
        ("convrec.training.unlogged:KeepsUnlogged._metrics_of_trained",),
        "called once more; what it counts is put back",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_step_end",
        "a759d37bd53da9f5",
        ("convrec.training.trainer_base:ConvRecMixin.on_step_end",),
        "it wakes the rollout",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._maybe_log_val_generations",
        "23d16817b64cf533",
        ("convrec.training.trackers.tracking:keep_samples",),
        "what the logger is called with",
    ),
    Pin(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons",
        "4ffdb3bccfea999a",
        ("convrec.rollout.agent_loop:stop_on_failure",),
    ),
    Pin(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._terminal_eviction_reasons",
        "dee4779773543c4c",
        ("convrec.rollout.agent_loop:stop_on_failure",),
    ),
    Pin(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample",
        "cdcecebeb7f0b44e",
        ("convrec.rollout.agent_loop:stop_on_failure",),
        "what is called first after polling",
    ),
    Pin(
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable",
        "5590a1b06f671763",
        ("convrec.rollout.agent_loop:stop_on_failure",),
        "what is called first after polling",
    ),
    Pin(
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._reissue_inflight_prompts",
        "64f2191e335dec93",
        ("convrec.rollout.agent_loop:retry_failed_prompts",),
        "pending ones are started",
    ),
    # TransferQueue
    Pin(
        "transfer_queue.interface:init",
        "4a75f86c544eea7e",
        ("convrec.rollout.queue:_ControllerOfThisRun",),
        "how the controller is made; an existing one is attached to",
    ),
    Pin(
        "transfer_queue.interface:_init_from_existing",
        "ed43e32c550d3e6f",
        ("convrec.rollout.queue:_RayOfThisRun",),
        "how the controller is looked up",
    ),
    Pin(
        "transfer_queue.interface:_maybe_create_tq_storage",
        "f6fbfd4913af88d8",
        (
            "convrec.rollout.queue:start",
            "convrec.rollout.queue:actors",
        ),
        "_TQ_STORAGE",
    ),
    Pin(
        "transfer_queue.storage.bootstrap.simple_storage_bootstrap:initialize_simple_storage",
        "9b21fbcd403341e4",
        ("convrec.rollout.queue:actors",),
        "name -> handle",
    ),
    # rollouts in groups
    Pin(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._run_prompt",
        "3d9bca6b0ea5fe25",
        ("convrec.rollout.groups:GroupedRollouts",),
        "statuses, n",
    ),
    Pin(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.generate_sequences",
        "4d7178988eae6a71",
        ("convrec.rollout.groups:GroupedRollouts._run_prompt",),
        "when it is started",
    ),
    Pin(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess",
        "523edacbff73640d",
        ("convrec.rollout.groups:Rollout",),
        "fields and tags",
    ),
    Pin(
        "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score",
        "163c1ca0102cfb2d",
        ("convrec.rollout.groups:GroupedRollouts.rewards_in_groups",),
        "it hands on what it gets",
    ),
    Pin(
        "verl.experimental.reward_loop.reward_manager.naive:NaiveRewardManager.run_single",
        "89e2c1e4e0d30a79",
        ("convrec.rollout.reward_manager:GroupRewardManager",),
    ),
    Pin(
        "verl.experimental.agent_loop.agent_loop:get_trajectory_info",
        "b34f57ccb22fcb39",
        ("convrec.rollout.groups:GroupedRollouts.validate",),
    ),
    Pin(
        "verl.workers.rollout.llm_server:LLMServerClient.generate",
        "45f4cf4029f0be37",
        ("convrec.rollout.groups:GroupedRollouts._generate",),
    ),
    Pin(
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.__init__",
        "9f1e99d66170d332",
        ("convrec.rollout.agent_loop:ConvRecAgentLoopManager",),
    ),
    Pin(
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop",
        "32c3d607c5d4c9fa",
        ("convrec.rollout.agent_loop:ConvRecAgentLoopWorker",),
    ),
    Pin(
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score",
        "cf4b57719ad3c1b2",
        ("convrec.rollout.agent_loop:ConvRecAgentLoopWorker",),
    ),
    Pin(
        "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run",
        "1baec41cee2de25f",
        (
            "convrec.training.dataset:ConvRecDataset",
            "convrec.rollout.groups:GroupedRollouts._output",
        ),
        "how a row's prompt is tokenized",
    ),
)


def resolve(name: str) -> Any:
    """The object of `module:qualified name`; of a Ray actor class, the class itself."""
    module, _, path = name.partition(":")

    def inside(item: Any, part: str) -> Any:
        actor = getattr(item, "__ray_metadata__", None)
        return getattr(actor.modified_class if actor else item, part)

    return reduce(inside, path.split("."), importlib.import_module(module))


@pytest.mark.parametrize("pin", PINS, ids=lambda pin: pin.upstream)
def test_upstream_code_is_what_was_read(pin: Pin) -> None:
    item = inspect.unwrap(resolve(pin.upstream))
    digest = hashlib.sha256(inspect.getsource(item).encode()).hexdigest()[:16]
    assert digest == pin.digest, (
        f"{pin.upstream} has changed: read it again together with {', '.join(pin.ours)} {pin.note}, fix what no longer "
        f"holds, and pin {digest}"
    )


@pytest.mark.parametrize("name", sorted({name for pin in PINS for name in pin.ours}))
def test_a_pin_names_code_of_ours(name: str) -> None:
    assert resolve(name) is not None


def test_every_upstream_function_is_pinned_once() -> None:
    names = [pin.upstream for pin in PINS]
    assert len(set(names)) == len(names)
