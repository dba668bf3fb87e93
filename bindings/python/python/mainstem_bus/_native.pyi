from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, TypedDict, final, type_check_only

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

_Overflow = Literal["block", "drop_oldest", "drop_newest", "disconnect"]

@type_check_only
class SubscriptionStats(TypedDict):
    id: int
    filter: str
    kind: Literal["callback", "mailbox", "cursor"]
    capacity: int
    overflow: _Overflow
    lag: int
    dropped: int
    failed: int
    is_disconnected: bool

@type_check_only
class BusStats(TypedDict):
    published: int
    filters: int
    retained: int
    in_flight: int
    dropped: int
    abandoned: int
    failed: int
    subscriptions: list[SubscriptionStats]

class BusError(Exception): ...
class ClosedError(BusError): ...
class DisconnectedError(BusError): ...
class RetainedFullError(BusError): ...
class NestedError(BusError): ...

@final
class Message:
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def headers(self) -> list[tuple[str, str]]: ...
    @property
    def timestamp(self) -> float | None: ...
    @property
    def is_replay(self) -> bool: ...
    def header(self, key: str) -> str | None: ...

@final
class Delivered:
    @property
    def delivered(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def failed(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Bus:
    def __new__(
        cls,
        *,
        retained_max: int = 65536,
        cached_topics: int = 16384,
        on_fault: Callable[[str, str, BaseException], object] | None = None,
    ) -> Bus: ...
    @property
    def is_closed(self) -> bool: ...
    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        headers: Mapping[str, str] | None = None,
        timestamp: float | None = None,
        retain: bool = False,
    ) -> Delivered: ...
    def publish_batch(self, topic: str, payloads: Iterable[Any]) -> Delivered: ...
    def subscribe(
        self,
        filter: str,
        callback: Callable[[Message], object],
        *,
        capacity: int = 1024,
        metadata: bool = False,
        replay: bool = False,
    ) -> Subscription: ...
    def mailbox(
        self,
        filter: str,
        *,
        capacity: int = 1024,
        overflow: _Overflow = "drop_oldest",
        metadata: bool = False,
        replay: bool = False,
    ) -> Mailbox: ...
    def cursor(
        self,
        filter: str,
        *,
        capacity: int = 1024,
        overflow: _Overflow = "drop_oldest",
        metadata: bool = False,
        replay: bool = False,
    ) -> Cursor: ...
    def retained(self, topic: str) -> Message | None: ...
    def clear_retained(self, topic: str) -> bool: ...
    def close(self) -> None: ...
    def close_and_wait(self, timeout: float) -> bool: ...
    def stats(self) -> BusStats: ...

@type_check_only
class _SubscriptionBase:
    def unsubscribe(self) -> None: ...
    def stats(self) -> SubscriptionStats: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None: ...

@final
class Subscription(_SubscriptionBase):
    def __enter__(self) -> Subscription: ...

@final
class Mailbox(_SubscriptionBase):
    def recv(self, timeout: float | None = None) -> Message: ...
    def try_recv(self) -> Message | None: ...
    def drain(self, max: int) -> list[Message]: ...
    def _poll(self, wake: Callable[[], object]) -> Message | None: ...
    def __iter__(self) -> Mailbox: ...
    def __next__(self) -> Message: ...
    def __aiter__(self) -> Mailbox: ...
    async def __anext__(self) -> Message: ...
    def __enter__(self) -> Mailbox: ...

@final
class Cursor(_SubscriptionBase):
    def next_batch(self, max: int = 256, timeout: float | None = None) -> list[Message]: ...
    def try_batch(self, max: int = 256) -> list[Message]: ...
    def __iter__(self) -> Cursor: ...
    def __next__(self) -> list[Message]: ...
    def __enter__(self) -> Cursor: ...
