"""The verl, vLLM and TransferQueue code that we override, replace or rely on is the code that was read."""

import hashlib
import importlib
import inspect
from functools import reduce
from typing import Any

import pytest

# our module -> {`module:qualified name` of theirs: digest of its source}; a comment says what is relied on
PINS = {
    "recipes.preflight.findings": {
        "verl.plugin.platform.platform_manager:_detect_platform_name": "8dffc2174390e96d",  # docs/how-to/cluster.md too
    },
    "convrec.cpu.preload": {
        "ray._private.parameter:RayParams.__init__": "22e43493cea49c22",  # setup_worker_path
    },
    "convrec.runs.fork_client": {
        # what Ray's setup_worker.py does for a worker
        "ray._private.runtime_env.context:RuntimeEnvContext.exec_worker": "ff162b2b53cd55f2",
        "ray._private.utils:update_envs": "4803971627040df6",
    },
    "convrec.generation.sampling": {
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu": "4757f56b45dcfa11",
    },
    "convrec.cpu.engine": {
        "verl.utils.distributed:initialize_global_process_group_ray": "761a94d1a2e058d3",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": "35b7b539858443e4",
        "verl.workers.engine.base:EngineRegistry.register": "6fd795c7149cb81d",
    },
    "convrec.training.log_prob_head": {
        # places of hidden states, packed and padded; what the forward is called with
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs": "e7a30a3b61b58c8b",
        # use_fused_kernels: log_probs and entropy of the forward's output
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs": "5239f536e8f617e3",
        "verl.trainer.ppo.padding_utils:construct_minimal_padding_template": "31f96671a0742859",  # response_mask 0
    },
    "convrec.training.attention.without_flash": {
        "verl.utils.torch_functional:logprobs_from_logits": "dffd21fe40eb806b",  # signature, callers
        "verl.utils.torch_functional:logprobs_from_logits_v2": "1074be97faf338ae",  # is it still a loop?
        "verl.workers.engine.utils:prepare_micro_batches": "e3083217530fed22",
        # arguments, micro-batches a process; batch_num_tokens counts loss_mask; also convrec.training.loss
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch": "be92c8d155f0c179",
        "verl.workers.engine.utils:postprocess_batch_func": "83c8d9c984b3c02a",  # it restores the order by the groups
    },
    "convrec.training.registration": {
        "verl.workers.rollout.replica:RolloutReplicaRegistry.register": "283ce5dd7be73264",
    },
    "convrec.cpu.server": {
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc": "21edd41f704fbb7b",  # noqa: E501
        # it reuses its buffer
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights": "229fcae433aeb2ae",  # noqa: E501
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer._get_worker_extension_cls": "f2a2ee36d2481803",  # noqa: E501
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": "edf5d7a47bad9843",
        "verl.checkpoint_engine.base:CheckpointEngineWorker.__init__": "c13ae6f24ae583c6",  # zmq_handle, process group
        "verl.workers.rollout.replica:RolloutReplica.get_ray_class_with_init_args": "50dafe7818bfbb26",
    },
    "convrec.rollout.server": {
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.__init__": "a43756da3be14482",  # server_class
        # self.engine
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server": "fff334de2369bfa0",
    },
    "convrec.generation.executor": {
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor": "7bdb84b8222a897e",
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._distributed_args": "a4481722f33ed1c6",
    },
    "convrec.training.trainer_base": {
        # replay_buffer; also convrec.training.rank_trainer
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.__init__": "6f938d77859b66ae",
        # steps and epochs; val_dataset; also convrec.training.rank_trainer
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader": "86cf3749e087b883",
        # role_worker_mapping
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_resource_pool_mgr": "9eaa3bab711e4deb",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint": "bb446d77c48ac6cc",  # the workers must be up
        # also convrec.training.rank_trainer
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob": "b2630e6178ed99f7",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__": "0c37a48629991988",  # poll_interval
        # parameter_sync_step updates a step; it fills the metrics before it returns
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.step": "e22f53aadb7805d2",
        # the tracker is written last; also convrec.checkpoints.saving
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint": "8c2435b577e54f19",
        # order of save, log, validate; after the last step it trains nothing; Tracking (convrec.training.trackers)
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit": "7d83a81c2e62979f",
        # called once more; what it counts is put back
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_metrics": "9c5c555787889555",
        "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync.on_step_end": "a759d37bd53da9f5",  # it wakes the rollout
    },
    "convrec.training.rank_trainer": {
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_tokenizer": "c4c19f471702b827",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage": "2a4a2aa4a475b228",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor": "d7009bd8a69d40b9",
        # is flush=True gone?
        "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync._setup": "792593a969da40cf",
    },
    "convrec.training.validation": {
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._val_metrics_update": "8cecd418b5011bfc",
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate": "f1d58a70e91d7883",
    },
    "convrec.training.worker": {
        "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": "d1598903d82449f2",
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lr_scheduler": "3a9dd2e4f0894732",  # a LambdaLR
        # which replaces it
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.lr_scheduler_step": "5df166dad20babd5",
        # the schedule advances once a call
        "verl.workers.engine_workers:TrainingWorker.train_mini_batch": "02b50b03fe7d8d29",
    },
    "recipes.launch.ray_training": {
        "verl.trainer.main_ppo:TaskRunnerV1.run": "26be986901db888b",  # which runs it in the driver's process
    },
    "convrec.report.curves": {
        "verl.workers.utils.losses:ppo_loss": "d7c0f8772b444f55",  # actor/kl: its kl_loss is without the coefficient
    },
    "recipes.launch.sft_training": {
        "verl.trainer.sft_trainer:run_sft": "5c028a6a2bc8c667",  # which does its steps
    },
    "convrec.training.trackers.tracking": {
        # epochs, the last step; also convrec.training.sft.trainer
        "verl.trainer.sft_trainer:SFTTrainer.fit": "88292f0424ff619b",
        # what the logger is called with
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._maybe_log_val_generations": "23d16817b64cf533",
    },
    "convrec.training.sft.trainer": {
        "verl.trainer.sft_trainer:SFTTrainer.__init__": "dd1971b1909af414",  # the state is loaded here
        "verl.trainer.sft_trainer:SFTTrainer._init_engine": "0140f0899f7f843a",  # steps and epochs
        # epochs, the last step; it waits for each answer at once; also convrec.training.sft.on_ray
        "verl.trainer.sft_trainer_ray:SFTTrainer.fit": "2f83522cc05eb96d",
        # the loaders are replaced; steps and epochs
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_dataloader": "f14c93be79994080",
        # what a step folder has; data_0.pt
        "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler.save_checkpoint": "3e967ed50a7b0298",
        # next_iter_state
        "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader.load_state_dict": "10e7ad3304cc7176",
        # next_iter_state
        "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader._get_iterator": "e4e230ab1471c8b0",
    },
    "convrec.training.sft.on_ray": {
        "verl.trainer.sft_trainer:SFTTrainer._get_lora_train_meta": "465aaf46c206cc98",  # called without its trainer
        "verl.trainer.sft_trainer_ray:SFTTrainer.__init__": "c2b69fee7f6cac2c",  # the state is loaded here
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_engine": "2db810b684ef2524",  # which does its steps
    },
    "convrec.checkpoints.reshard": {
        # names of the shards; optimizer and schedule come back; also convrec.training.worker
        "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint": "6f75218097c563a0",
    },
    "convrec.rollout.agent_loop": {
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons": "4ffdb3bccfea999a",
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._terminal_eviction_reasons": "dee4779773543c4c",
        # what is called first after polling
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": "cdcecebeb7f0b44e",
        # what is called first after polling
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable": "5590a1b06f671763",
        # pending ones are started
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._reissue_inflight_prompts": "64f2191e335dec93",
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.__init__": "9f1e99d66170d332",
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._run_agent_loop": "32c3d607c5d4c9fa",
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score": "cf4b57719ad3c1b2",
    },
    "convrec.rollout.queue": {
        # how the controller is made; an existing one is attached to
        "transfer_queue.interface:init": "4a75f86c544eea7e",
        "transfer_queue.interface:_init_from_existing": "ed43e32c550d3e6f",  # how the controller is looked up
        "transfer_queue.interface:_maybe_create_tq_storage": "f6fbfd4913af88d8",  # _TQ_STORAGE
        # name -> handle
        "transfer_queue.storage.bootstrap.simple_storage_bootstrap:initialize_simple_storage": "9b21fbcd403341e4",
    },
    "convrec.rollout.groups": {
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._run_prompt": "3d9bca6b0ea5fe25",  # statuses, n
        # when it is started
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.generate_sequences": "4d7178988eae6a71",
        # it hands on what it gets
        "verl.experimental.reward_loop.reward_loop:RewardLoopWorker.compute_score": "163c1ca0102cfb2d",
        "verl.experimental.agent_loop.agent_loop:get_trajectory_info": "b34f57ccb22fcb39",
        "verl.workers.rollout.llm_server:LLMServerClient.generate": "45f4cf4029f0be37",
    },
    "convrec.rollout.responses": {
        # fields and tags
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess": "523edacbff73640d",
    },
    "convrec.rollout.reward_manager": {
        "verl.experimental.reward_loop.reward_manager.naive:NaiveRewardManager.run_single": "89e2c1e4e0d30a79",
    },
    "convrec.training.dataset": {
        # how a row's prompt is tokenized; also convrec.rollout.groups
        "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run": "1baec41cee2de25f",
    },
}
THEIRS = {name: (digest, ours) for ours, pins in PINS.items() for name, digest in pins.items()}


def resolve(name: str) -> Any:
    """The object of `module:qualified name`; of a Ray actor class, the class itself."""
    module, _, path = name.partition(":")

    def inside(item: Any, part: str) -> Any:
        actor = getattr(item, "__ray_metadata__", None)
        return getattr(actor.modified_class if actor else item, part)

    return reduce(inside, path.split("."), importlib.import_module(module))


@pytest.mark.parametrize("name", THEIRS)
def test_upstream_code_is_what_was_read(name: str) -> None:
    wanted, ours = THEIRS[name]
    digest = hashlib.sha256(inspect.getsource(inspect.unwrap(resolve(name))).encode()).hexdigest()[:16]
    assert digest == wanted, (
        f"{name} has changed: read it again together with {ours}, fix what no longer holds, and pin {digest}"
    )


def test_pins_are_of_code_of_ours_and_each_function_is_pinned_once() -> None:
    for ours in PINS:
        importlib.import_module(ours)
    assert len(THEIRS) == sum(map(len, PINS.values()))
