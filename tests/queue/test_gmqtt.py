"""gmqtt workers: the callback's return value is the reason code of the PUBACK."""

import asyncio

from gmqtt import Client, Message, Subscription
from gmqtt.mqtt.constants import PubRecReasonCode

DEADLINE_S = 30


def user_properties(properties) -> dict:
    """The user properties of a message; the first of a name counts."""
    return dict(reversed(properties["user_property"]))


class Worker:
    """A worker that collects messages in `came`, and settles them with `disposition(delivery count)`."""

    def __init__(self, name, disposition):
        self.came = asyncio.Queue()
        self._client = Client(name, optimistic_acknowledgement=False)
        self._subscribed = asyncio.Event()

        async def on_message(_client, _topic, payload, _qos, properties):
            count = int(user_properties(properties)["delivery-count"])
            self.came.put_nowait((payload.decode(), count, user_properties(properties)))
            return disposition(count).value

        self._client.on_message = on_message
        self._client.on_subscribe = lambda *_: self._subscribed.set()

    async def start(self, broker_process, queue):
        await self._client.connect(broker_process.mqtt.host, broker_process.mqtt.port)
        self._client.subscribe(Subscription(f"$queue/{queue}", qos=1))
        await asyncio.wait_for(self._subscribed.wait(), DEADLINE_S)
        return self

    def send(self, queue, payload):
        self._client.publish(Message(f"$queue/{queue}", payload, qos=1))

    async def next(self):
        return await asyncio.wait_for(self.came.get(), DEADLINE_S)

    async def stop(self):
        await self._client.disconnect()


def test_the_return_value_is_the_disposition(broker_process, operations, make_queue, unique):
    """Fails twice, and succeeds at the third attempt."""
    queue = make_queue(backoff_ms=20)

    async def run():
        worker = Worker(unique, lambda count: PubRecReasonCode.SUCCESS if count == 3 else PubRecReasonCode.UNSPECIFIED_ERROR)
        await worker.start(broker_process, queue)
        for number in range(10):
            worker.send(queue, f"{number}")
        got = [await worker.next() for _ in range(30)]
        assert sorted((text, count) for text, count, _ in got) == [(f"{number}", count) for number in range(10) for count in (1, 2, 3)]
        await worker.stop()

    asyncio.run(run())
    operations.empty(queue)
    assert operations.group(queue)["dead"] == 0


def test_a_rejected_message_becomes_a_dead_letter(broker_process, operations, make_queue, unique):
    queue = make_queue()

    async def run():
        worker = Worker(unique, lambda _: PubRecReasonCode.PAYLOAD_FORMAT_INVALID)
        undertaker = Worker(f"{unique}u", lambda _: PubRecReasonCode.SUCCESS)
        await worker.start(broker_process, queue)
        await undertaker.start(broker_process, f"{queue}.dead")
        worker.send(queue, "broken")
        text, _, properties = await undertaker.next()
        assert (text, properties["dead-letter-reason"], properties["dead-letter-queue"]) == ("broken", "rejected", queue)
        await worker.stop()
        await undertaker.stop()

    asyncio.run(run())
    operations.empty(queue)
    operations.empty(f"{queue}.dead")
