"""Asynchronous iteration over a mailbox.

Publishers on any thread wake the waiting task through its event loop.
"""

import asyncio

from ._native import ClosedError, Mailbox, Message


async def next_message(mailbox: Mailbox) -> Message:
    """Return the next message. Raise StopAsyncIteration when the bus is closed."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def wake() -> None:
        # A closed loop has no waiting task.
        if not loop.is_closed():
            loop.call_soon_threadsafe(arrived.set)

    while True:
        arrived.clear()
        try:
            message = mailbox._poll(wake)
        except ClosedError:
            raise StopAsyncIteration from None
        if message is not None:
            return message
        await arrived.wait()
