"""verl, Ray and vLLM on a host without an accelerator: code that only such a host needs.

`platform` uses the registries of the libraries, and `openmp` loads another OpenMP for SFT. The following functions are
replaced, because their libraries have no registry for them; each entry has the benefit and the condition under which it
can be removed. `tests/test_upstream.py` pins the source of each.

vLLM's `TopKTopPSampler.forward_cpu`, by `sampling`
    A step of the demo's model takes .88 of the time, its generation .73. Until vLLM samples on a CPU without a random
    number for every word of the vocabulary: vllm-project/vllm#53913, open.
vLLM's `SiluAndMul.forward_native`, by `kernels`
    With vLLM's C kernel for a CPU. `kernels` also registers the C kernels of RMS norm, for which vLLM has a registry.
    Together a decoding step takes .70 of the time with SmolLM2-135M in bf16, .84 in fp32 and with the demo's model.
    Until vLLM uses them without a compiler: vllm-project/vllm#39453, open.
vLLM's `reload_weights` of tied heads, by `convrec.checkpoints.reload`
    Correct log-probs, off by 5e-7 nats instead of .233. Until a vLLM that ties heads in one way:
    vllm-project/vllm#51665, merged after the pinned version.
verl's `update_weights_from_ipc`, by `server`
    Weights reach a rollout without CUDA's IPC. Until verl runs without an accelerator: verl-project/verl#3405, open.
    The same holds for the next two.
verl's `FSDPEngine._build_fsdp_module`, by `engine`
    A reference model is built without pinned memory.
verl's `initialize_global_process_group_ray`, by `engine`
    A gloo group that torch accepts, and that does not listen on any address.
Ray's `RayParams(setup_worker_path)`, by `preload`, `fork_server` and `fork_client`
    20 s instead of 49 from the command to the first rollout, and 32 s of CPU instead of 83. Until Ray forks workers
    from a process with their imports: RAY_preload_python_modules (ray-project/ray#33572) imports in each worker.
Ray's `ActorClassID.from_random`, by `class_ids`
    Forked processes draw different ids. Needed as long as the fork server is.
"""
