"""Whether this machine can confine programs, so that the sandbox's tests also run on machines that can't."""

from target_model.sandbox import CheckedProgram, Limits, WeakSandboxError, run_program


def _is_strong() -> bool:
    try:
        run_program(CheckedProgram(""))
    except WeakSandboxError:
        return False
    return True


IS_STRONG = _is_strong()
LIMITS = Limits(allow_weak=not IS_STRONG)
