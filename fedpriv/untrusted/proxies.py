"""The proxy for an address, by the variables ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy``.

Libraries read these variables differently, and most use the proxy even for addresses of this machine.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies

from fedpriv.untrusted.addresses import shown_address

_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def proxy_for(url: str) -> str | None:
    """The URL of the proxy for a URL; ``None``: it is reached directly, as this machine always is."""
    from requests.utils import get_environ_proxies, select_proxy

    if _is_here(urlsplit(url).hostname or ""):
        return None
    proxy = select_proxy(url, get_environ_proxies(url))
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy or None


def by_proxy(url: str) -> str:
    """A phrase for the error of an unreachable URL: which proxy was used, and how to avoid it; empty: none was used."""
    if (proxy := proxy_for(url)) is None:
        return ""
    return f" through the proxy {shown_address(proxy)} (of the environment; no_proxy={urlsplit(url).hostname} goes without it)"


def go_direct(*hosts: str) -> None:
    """Have this process, and those that it will start, reach these hosts and this machine without a proxy."""
    if not (proxies := getproxies()).keys() - {"no"}:
        return
    listed = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*listed, *_LOOPBACK, *hosts]))


def use_proxy(proxy: str | None) -> None:
    """Have this process use one proxy for all HTTPS addresses; ``None``: no proxy."""
    for name in [name for name in os.environ if name.lower() in _VARIABLES]:
        del os.environ[name]
    if proxy is not None:
        os.environ["https_proxy"] = proxy


def _is_here(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
