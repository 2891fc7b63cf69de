"""Send values, with their classes, to another process that repper has started.

A method, head or rule of the user's own may be written in a notebook, or in a file that no other
process can import by a name. Pickled by reference it could not be opened there, so such classes go
along by value. This is for processes that we have started ourselves, never for files or networks.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle

from repper.basics.registry import FROM_FILE, OWN_PACKAGES


@dataclass(frozen=True)
class ByValue:
    """A value that is pickled together with its class."""

    content: bytes

    @classmethod
    def pack(cls, value: Any) -> ByValue:
        ours = [module for name, module in sys.modules.items() if name.startswith(FROM_FILE)]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cls(cloudpickle.dumps((value, OWN_PACKAGES)))
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)

    def open(self) -> Any:
        value, packages = cloudpickle.loads(self.content)
        OWN_PACKAGES.update(packages)
        return value
