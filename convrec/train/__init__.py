"""The seam to verl: trainers, loss, worker, datasets, liveness, tracking.

`convrec.train` is also the name of a public function, and importing anything of this package makes the package the
attribute `train` of convrec. So the package can be called, and `from convrec import train` trains in either case.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, config: Any, **options: Any) -> Any:
        """See `convrec.api.train`."""
        from convrec import api

        return api.train(config, **options)


sys.modules[__name__].__class__ = _CallablePackage
