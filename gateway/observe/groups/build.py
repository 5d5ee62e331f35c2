"""Which gateway this is."""

import platform
from importlib import metadata

from gateway.observe.group import Group, Known
from gateway.observe.series import Gauge


class Build(Group):
    """Its version, and the Python that it runs on."""

    def __init__(self, _: Known) -> None:
        about = (metadata.version("interlock"), platform.python_version())
        text = "1. The gateway's version, and Python's."
        super().__init__("Build", [Gauge("interlock_build_info", text, ("version", "python"), lambda: [(about, 1.0)])])


GROUP = Build
