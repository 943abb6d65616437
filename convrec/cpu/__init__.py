"""verl, Ray and vLLM on a host without an accelerator: all that only such a host needs.

Where a library has a registry, `platform` uses it. What is replaced in a library beside that, what it brings, and what
would make it needless (`tests/test_upstream.py` pins the source of each):

vLLM's `TopKTopPSampler.forward_cpu`, by `sampling`
    A step of the demo's model takes .88 of before, its generation .73. Needless once vLLM samples on a CPU without a
    random number for every word: vllm-project/vllm#53913, open.
vLLM's `reload_weights` of tied heads, by `convrec.checkpoints.reload`
    Right log-probs: they were .233 nats off, now 5e-7. Needless with a vLLM that ties heads in one way:
    vllm-project/vllm#51665, merged after the pinned version.
verl's `update_weights_from_ipc`, by `server`
    Weights reach a rollout without CUDA's IPC. Needless once verl runs without an accelerator:
    verl-project/verl#3405, open. So are the two below.
verl's `FSDPEngine._build_fsdp_module`, by `engine`
    A reference model is built without pinned memory.
verl's `initialize_global_process_group_ray`, by `engine`
    A gloo group that torch takes, and that listens on no address.
Ray's `RayParams(setup_worker_path)`, by `preload`, `fork_server` and `fork_client`
    20 s from the command to the first rollout, 49 before; 32 s of CPU, 83 before. Needless once Ray forks workers from
    a process that has imported: RAY_preload_python_modules (ray-project/ray#33572) imports in each.
Ray's `ActorClassID.from_random`, by `class_ids`
    Processes that are forked draw different ids. Needless as the fork server is.
"""
