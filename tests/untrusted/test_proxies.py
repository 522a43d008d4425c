"""Which proxy an address is reached by, and that processes and their libraries follow it."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.request import getproxies

import httpx
import pytest
import requests

from fedpriv.untrusted.proxies import by_proxy, go_direct, proxy_for, use_proxy

PROXY = "http://user:hunter2@proxy.example.org:3128"


pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:8400", "https://127.0.1.1", "https://localhost:1", "http://[::1]:5000", "http://0.0.0.0:5000"]
)
def test_this_machine_is_reached_directly(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, PROXY)
    assert proxy_for(url) is None and by_proxy(url) == ""
    assert proxy_for("https://127.0.0.1.example.org") == PROXY


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"https_proxy": PROXY}, PROXY),
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"https_proxy": "proxy.example.org:3128"}, "http://proxy.example.org:3128"),
        ({"http_proxy": PROXY}, None),  # it is asked by HTTPS
        ({"all_proxy": "socks5://proxy.example.org:1080"}, "socks5://proxy.example.org:1080"),
        ({"https_proxy": PROXY, "no_proxy": "other.org, example.org"}, None),
        ({"https_proxy": PROXY, "NO_PROXY": ".example.org"}, None),
        ({"https_proxy": PROXY, "no_proxy": "*.org"}, PROXY),  # no such form
        ({"https_proxy": PROXY, "no_proxy": "*"}, None),
    ],
)
def test_elsewhere_as_the_environment_says(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("https://server.example.org:8443/v1") == proxy


def test_networks_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    assert proxy_for("https://10.1.2.3:8443") is None and proxy_for("https://11.1.2.3:8443") == PROXY


def test_a_message_names_the_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", PROXY)
    phrase = by_proxy("https://server.example.org:8443/v1")
    assert (
        "http://user:***@proxy.example.org:3128" in phrase and "no_proxy=server.example.org" in phrase and "hunter2" not in phrase
    )


@pytest.mark.parametrize("before", ["", "example.org", "example.org,127.0.0.1"])
def test_libraries_go_directly_to_this_machine_and_to_named_hosts(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, PROXY)
    if before:
        monkeypatch.setenv("NO_PROXY", before)
    go_direct("10.1.2.3", "fd00::7")
    go_direct("10.1.2.3")
    for host in ("127.0.0.1", "localhost", "[::1]", "10.1.2.3", "[fd00::7]", *(["example.org"] if before else [])):
        url = f"https://{host}:8400/v1"
        assert requests.utils.should_bypass_proxies(url, None), host
        with httpx.Client() as client:
            assert client._transport_for_url(httpx.URL(url)) is client._transport, host
    assert os.environ["no_proxy"].split(",").count("127.0.0.1") == 1
    assert proxy_for("https://server.elsewhere.org") == PROXY
    result = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['no_proxy'])"], capture_output=True, text=True, check=True
    )
    assert "10.1.2.3" in result.stdout


def test_without_a_proxy_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org")
    before = dict(os.environ)
    go_direct("10.1.2.3")
    assert dict(os.environ) == before


@pytest.mark.parametrize("proxy", [None, PROXY])
def test_one_proxy_and_no_other(proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://other.example.org")
    monkeypatch.setenv("NO_PROXY", "server.example.org")
    use_proxy(proxy)
    assert getproxies() == ({} if proxy is None else {"https": proxy})
