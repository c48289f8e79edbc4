"""vLLM's plugin `completion_server_on_cpu`: applies the patches of vLLM on a CPU.

vLLM calls `register` in each of its processes, before it installs its fallbacks for machines without Triton. If
`VLLM_PLUGINS` names the plugins to use, this must be among them (`process.check_plugins`).
"""

from completion_server.engine.vllm.patches import ON_A_CPU


def register() -> None:
    """Apply the patches, on a CPU only."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    of_each_process, *of_the_worker = ON_A_CPU
    of_each_process.apply()
    platform = type(current_platform)
    install_fallbacks = platform.register_triton_kernel_overrides

    def install_all() -> None:
        install_fallbacks()
        for patch in of_the_worker:
            patch.apply()

    # Only the worker's process calls this: importing the runner would take the others half a second.
    platform.register_triton_kernel_overrides = staticmethod(install_all)  # type: ignore[method-assign]
