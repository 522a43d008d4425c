"""Frames in Flower's messages; contents that are no frame are refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: uv run --extra deploy pytest tests/deploy")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedpriv.deploy.flower.apps import _packed, _unpacked
from fedpriv.deploy.stream import Broken

pytestmark = pytest.mark.extra("deploy")

LARGE = 10**15
"""As a number of bytes, more than any memory."""


def test_a_frame_round_trips_through_a_message() -> None:
    assert _unpacked(_packed(b"{}", (b"one", b"two"))) == (b"{}", [b"one", b"two"])


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"head": ConfigRecord({"head": b"{}"})},
        {"parts": ArrayRecord({})},
        {"head": ConfigRecord({}), "parts": ArrayRecord({})},
        {"head": ArrayRecord({}), "parts": ConfigRecord({})},
        {"head": ConfigRecord({"head": LARGE}), "parts": ArrayRecord({})},
        {"head": ConfigRecord({"head": "text"}), "parts": ArrayRecord({})},
        {"head": ConfigRecord({"head": [1, 2]}), "parts": ArrayRecord({"0": Array("uint8", (1,), "fedpriv.sealed", b"1")})},
    ],
)
def test_messages_without_a_frame_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(Broken, match="a message"):
        _unpacked(RecordDict(content))
