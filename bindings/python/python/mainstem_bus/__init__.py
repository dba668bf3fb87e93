"""In-process publish/subscribe with MQTT topics."""

from ._native import (
    Bus,
    BusError,
    ClosedError,
    Cursor,
    Delivered,
    DisconnectedError,
    Mailbox,
    Message,
    NestedError,
    RetainedFullError,
    Subscription,
)

__all__ = [
    "Bus",
    "BusError",
    "ClosedError",
    "Cursor",
    "Delivered",
    "DisconnectedError",
    "Mailbox",
    "Message",
    "NestedError",
    "RetainedFullError",
    "Subscription",
]
