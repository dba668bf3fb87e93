"""MQTT-style topic publish/subscribe between the parts of one program."""

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
