"""Which requests for the admin port an operator's own tools can have sent, and which the page of another site, in their browser.

A browser that is on the operator's machine reaches what the operator reaches, for any page. It says of whom it asks (`Host`), and
mostly for whom (`Origin`, `Sec-Fetch-Site`). A page may have its own name resolved to this machine, but not lie about the name.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Header

from gateway.errors import ForeignSite

_Said = Annotated[str | None, Header(include_in_schema=False)]

_INNER = (".localhost", ".internal", ".local", ".svc", ".cluster.local")  # endings that no site of the internet has


class OwnSite:
    """Tells this gateway's own admin address from others. `names` are more names that it has."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(each.casefold() for each in names)

    async def asked(self, host: _Said = None, sec_fetch_site: _Said = None, sec_fetch_dest: _Said = None) -> None:
        """For a request that only reads: it must be for this address. A page of another site may only link here, as what it has
        the browser fetch costs us and shows nobody anything. Raises ForeignSite."""
        if host is not None and not self._is_own(host):
            raise ForeignSite("The admin port has no such name; `server.admin_names` gives it names.", param="host")
        if sec_fetch_site == "cross-site" and sec_fetch_dest != "document":
            raise ForeignSite("A page of another site may only link here.", param="sec-fetch-site")

    async def changed(self, host: _Said = None, origin: _Said = None, sec_fetch_site: _Said = None) -> None:
        """For one that changes something: no page of another site may have asked. Raises ForeignSite."""
        await self.asked(host)
        if sec_fetch_site not in (None, "same-origin", "none"):
            raise ForeignSite("A page of another site may not do this.", param="sec-fetch-site")
        if origin is not None and origin.casefold().partition("://")[2] != (host or "").casefold():
            raise ForeignSite("A page of another site may not do this.", param="origin")

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        return bool(name) and ("." not in name or name.endswith(_INNER) or name in self._names or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
