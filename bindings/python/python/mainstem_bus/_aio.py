"""How a mailbox waits in an asyncio loop: woken from whichever thread publishes."""

import asyncio

from ._native import ClosedError, Mailbox, Message


async def next_message(mailbox: Mailbox) -> Message:
    """The next message; ends the iteration where the bus ends."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def wake() -> None:
        # A loop that is gone has nobody who waits.
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
