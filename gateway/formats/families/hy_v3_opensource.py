"""HY 3 as it is published: the format of `hy_v3` with `:opensource` in every marker."""

from dataclasses import replace

from gateway.formats.families import hy_v3
from gateway.formats.suffix import with_suffix

FORMAT = replace(with_suffix(hy_v3.FORMAT, "opensource"), name="hy_v3_opensource")
