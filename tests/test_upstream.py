"""The verl, vLLM and TransferQueue code that we override, replace or rely on is the code that was read."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import textwrap
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

# our module -> {`module:qualified name` of theirs: digest of its code}; the comment says what is relied on
PINS = {
    "recipes.preflight.findings": {
        # docs/how-to/scale-out.md says what it looks at
        "verl.plugin.platform.platform_manager:_detect_platform_name": "e382670f828f25b0",
    },
    "convrec.cpu.preload": {
        # setup_worker_path
        "ray._private.parameter:RayParams.__init__": "b9c7624ac6b962cf",
    },
    "convrec.cpu.fork_client": {
        # what Ray's setup_worker.py does for a worker
        "ray._private.runtime_env.context:RuntimeEnvContext.exec_worker": "9d90a9654c23ec31",
    },
    "convrec.cpu.sampling": {
        # replaced
        "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu": "54998e2d7769a97d",
    },
    "convrec.cpu.kernels": {
        # replaced
        "vllm.model_executor.layers.activation:SiluAndMul.forward_native": "28ca2b3ae4dbcaf9",
        # on a CPU it computes by forward_native
        "vllm.model_executor.layers.activation:SiluAndMul.__init__": "71d84e2f73d3850d",
        # the first implementation of the order that supports the arguments
        "vllm.ir.op:IrOp.dispatch": "842785d20053dc14",
        # the order is set after `install`
        "vllm.v1.worker.worker_base:WorkerBase.__init__": "423a449802e81331",
    },
    "convrec.cpu.engine": {
        # replaced
        "verl.utils.distributed:initialize_global_process_group_ray": "97e4987875d8f49c",
        # replaced
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": "25b31b8419f7edfb",
        # entered around every micro-batch that trains
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._gradient_sync_context": "29511ca73671f860",
        # in a process alone it copies the weights into `all_gather_outputs`, which are the weights here
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.wait_for_unshard": "e258f5d557434003",
        # replaced: it would free the weights
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.free_unsharded_param": "ad404ff4e49a6413",
        # leaves what is there already
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.init_all_gather_outputs": "729994505ffa1b75",
        # replaced in a process alone
        "torch.distributed.fsdp._fully_shard._fsdp_collectives:foreach_reduce": "4ca6aac4bc4dc420",
        # where gradients are after a backward pass that does not reduce them
        "torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward": "040e4b44349740a5",
        # what layers compute with is a view of them
        "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.init_unsharded_param": "41de55df9b416c67",
        # without a mask keys and values are not copied for each head that shares them
        "transformers.integrations.sdpa_attention:sdpa_attention_forward": "e2d02e2d29fb2651",
        # why positions go on in the padding
        "transformers.masking_utils:find_packed_sequence_indices": "6e107a4d026b2375",
    },
    "convrec.training.log_prob_head": {
        # places of hidden states, packed and padded; the forward's arguments
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs": "d5bc3786e11317c0",
        # use_fused_kernels: log_probs and entropy of the forward's output
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs": "70b9710f6e76a417",
        # response_mask is 0 in padding rows
        "verl.trainer.ppo.padding_utils:construct_minimal_padding_template": "b43b6b853fc022e8",
    },
    "convrec.training.attention.without_flash": {
        # replaced: a loop over rows
        "verl.utils.torch_functional:logprobs_from_logits_v2": "cb6d48a4863b797f",
        # replaced
        "verl.workers.engine.utils:prepare_micro_batches": "79f5cdbf91044771",
        # it restores the order by the groups
        "verl.workers.engine.utils:postprocess_batch_func": "a1e1d835eb3b445a",
    },
    "convrec.training.loss": {
        # arguments of the loss, micro-batches per process; batch_num_tokens counts loss_mask
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.forward_backward_batch": "58278672fd940bc3",
    },
    "convrec.cpu.server": {
        # replaced
        "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension.update_weights_from_ipc": "0f4969227771e8b5",  # noqa: E501
        # it reuses its buffer
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer:BucketedWeightReceiver.receive_weights": "0fe74dac8be70e84",  # noqa: E501
        # what it leaves out on a CPU
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.reload_weights": "f96da3aa1ddad7b2",
    },
    "convrec.rollout.server": {
        # zmq_handle
        "verl.checkpoint_engine.base:CheckpointEngineWorker.__init__": "c2220890868c8575",
        # self.engine
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.launch_server": "8e4c95160cd685e5",
        # vLLM's application with its middleware, behind a port
        "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.run_server": "8462a16cb585d364",
    },
    "convrec.inference.engines.executor": {
        # replaced
        "vllm.v1.executor.uniproc_executor:UniProcExecutor._init_executor": "4c0683aba90dfa5d",
    },
    "convrec.training.loop": {
        # replaced by TrainingLoop.fit
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit": "cff88c9dd0b7166e",
        # replaced by TrainingLoop.update_once
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._step_once": "7068730b888e6869",
        # parameter_sync_step updates per step; it calls `_step_once`
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer.step": "3a2c81baa2484613",
        # bypass mode; what it logs
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob": "751829836a5be057",
        # hooks around the weights
        "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync.on_step_end": "300bc185706a19c4",
    },
    "convrec.training.trainer": {
        # steps and epochs; val_dataset
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader": "388b4b4861ae9285",
        # role_worker_mapping
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_resource_pool_mgr": "8f579946ba2432c8",
        # the workers must be up
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint": "fc963d11da9dc04d",
        # the tracker is written last; convrec.checkpoints.saving
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint": "40be7b751cd74a98",
        # times among its metrics are computed again at the end
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_metrics": "ef1b3803bdb7f2af",
        # rows of a mini-batch
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor": "2cf87b3eb041004a",
        # it runs in the driver's process
        "verl.trainer.main_ppo:TaskRunnerV1.run": "6944d97bd41b4640",
    },
    "convrec.training.rank_trainer": {
        # is flush=True gone?
        "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync._setup": "e68a256e30426154",
    },
    "convrec.training.validation": {
        # replaced where prompts go in groups
        "verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate": "1beed36b5a0454f5",
    },
    "convrec.training.worker": {
        # what is built when
        "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": "3b7a26aa78115f70",
        # a LambdaLR, which is replaced
        "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_lr_scheduler": "c2d64232a29f16a5",
        # the schedule advances once a call
        "verl.workers.engine_workers:TrainingWorker.train_mini_batch": "6dd22c3c5698256b",
    },
    "convrec.report.curves": {
        # actor/kl: its kl_loss is without the coefficient
        "verl.workers.utils.losses:ppo_loss": "f5653825352a67a4",
    },
    "convrec.training.sft.loop": {
        # replaced by SFTLoop.fit
        "verl.trainer.sft_trainer:SFTTrainer.fit": "8938ae595f717883",
        # replaced by SFTLoop.fit
        "verl.trainer.sft_trainer_ray:SFTTrainer.fit": "e4abfa6af5fe9cc8",
    },
    "convrec.training.sft.trainer": {
        # the state is loaded here
        "verl.trainer.sft_trainer:SFTTrainer.__init__": "d17d202dd6facd64",
        # the loaders are replaced; steps and epochs
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_dataloader": "bc146496e7c36599",
        # what a step folder has; data_0.pt
        "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler.save_checkpoint": "e7880d5805e5dad9",
        # next_iter_state
        "torchdata.stateful_dataloader.stateful_dataloader:StatefulDataLoader._get_iterator": "344346e2b16d2a17",
    },
    "convrec.training.sft.on_ray": {
        # worker and pool are replaced
        "verl.trainer.sft_trainer_ray:SFTTrainer._build_engine": "25886132b9e49e0d",
    },
    "convrec.checkpoints.reshard": {
        # names of the shards; optimizer and schedule come back
        "verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint": "f91dcc1b738bfe45",
    },
    "convrec.rollout.failures": {
        # called first after polling
        "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons": "46a62afcd3a52ea2",
        # called first after polling
        "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._terminal_eviction_reasons": "331abf02271d796e",
    },
    "convrec.rollout.queue": {
        # how the controller is made; an existing one is attached to
        "transfer_queue.interface:init": "167c85c35d00cdac",
        # how the controller is looked up
        "transfer_queue.interface:_init_from_existing": "c2af57ff19bb35f5",
        # _TQ_STORAGE
        "transfer_queue.interface:_maybe_create_tq_storage": "f0f99c5c6f7c8d2e",
    },
    "convrec.rollout.queue_sockets": {
        # replaced
        "transfer_queue.utils.zmq_utils:create_zmq_socket": "deadb0fb29fd4de8",
        # which sockets are servers
        "transfer_queue.controller:TransferQueueController._init_zmq_socket": "d7424a864333ba63",
        # which sockets are servers
        "transfer_queue.storage.simple_storage:SimpleStorageUnit._init_zmq_socket": "07e21d4baf022f46",
    },
    "recipes.launch.environment": {
        # replaced: env_updates
        "ray._private.services:start_ray_process": "779b11bbb85883ef",
        # a file that is there keeps it from asking
        "ray._common.usage.usage_lib:get_cluster_config_to_report": "b226a0fa9f59b1fb",
    },
    "convrec.rollout.agent_loop": {
        # replaced for groups: statuses, n
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._run_prompt": "a7e51b357d1000e9",
        # a task per prompt of a call
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.generate_sequences": "d196288b86adf244",
        # it scores what has no score
        "verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_score": "803d006279e40396",
    },
    "convrec.rollout.sampler": {
        # replaced for groups: tokens of a prompt, fields of a response
        "verl.experimental.agent_loop.single_turn_agent_loop:SingleTurnAgentLoop.run": "6bde2f71c6d1fb0b",
        # how a server is chosen and let go
        "verl.workers.rollout.llm_server:LLMServerClient.generate": "bd35db3d54e67102",
    },
    "convrec.features.responses": {
        # fields and tags
        "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess": "0de51a6927418fa9",
    },
    "convrec.rollout.reward_manager": {
        # replaced for lists
        "verl.experimental.reward_loop.reward_manager.naive:NaiveRewardManager.run_single": "21169afbe79a4ed9",
    },
}
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
THEIRS = {name: (digest, ours) for ours, pins in PINS.items() for name, digest in pins.items()}


def resolve(name: str) -> Any:
    """The object of `module:qualified name`; of a Ray actor class, the class itself."""
    module, _, path = name.partition(":")

    def inside(item: Any, part: str) -> Any:
        actor = getattr(item, "__ray_metadata__", None)
        return getattr(actor.modified_class if actor else item, part)

    return reduce(inside, path.split("."), importlib.import_module(module))


def digest_code(function: Any) -> str:
    """Return a digest of a function's syntax tree: comments, docstrings and layout may change."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", THEIRS)
def test_upstream_code_is_what_was_read(name: str) -> None:
    expected, ours = THEIRS[name]
    digest = digest_code(resolve(name))
    assert digest == expected, (
        f"{name} has changed: read it again together with {ours}, fix what no longer holds, and pin {digest}"
    )


def test_pins_belong_to_our_modules_and_pin_each_function_once() -> None:
    for ours in PINS:
        importlib.import_module(ours)
    assert len(THEIRS) == sum(map(len, PINS.values()))


def test_a_digest_is_of_code_alone(tmp_path: Path) -> None:
    texts = {
        "plain": "def f(a):\n    return a + 1\n",
        "documented": 'def f(a):\n    """Adds."""\n    return (a\n            + 1)  # one\n',
        "other": "def f(a):\n    return a + 2\n",
    }
    digests = {}
    for name, text in texts.items():
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        digests[name] = digest_code(module.f)
    assert digests["plain"] == digests["documented"] != digests["other"]
