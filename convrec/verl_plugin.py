"""Entry point of the `verl.plugins` group: runs in every process that imports verl, so it must stay light.

It makes the platform "cpu" known. Everything heavier (names in verl's registries, the CPU engine, the CPU rollout
server) is registered by the processes that use it: see `convrec.training.registration` and `convrec.cpu.platform`.
"""

from convrec.cpu import platform as platform
