"""kafka-python's codec: every announced version of every API is served, all others are refused."""

import io
import socket
import struct

import pytest
from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from peer import DEADLINE_S

UNSUPPORTED_VERSION = 35
REQUESTS = {
    request.API_KEY: request
    for module in (admin, consumer, metadata, producer)
    for name, request in vars(module).items()
    if name.endswith("Request")
}
# APIs that Apache Kafka 4.3 announces and every client needs: first and last version by key.
WANTED = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5),
    23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 28: (0, 5), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3),
    42: (0, 2), 44: (0, 1), 47: (0, 0), 60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 2), 74: (0, 1), 75: (0, 0),
}
# Fields that must not be empty.
NEEDED = {
    0: {"acks": -1, "timeout_ms": 1000},
    18: {"client_software_name": "tests", "client_software_version": "1"},
    22: {"transaction_timeout_ms": 1000},
    24: {"transactions": [producer.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="none", producer_id=1, producer_epoch=0, topics=[])]},
    # Any of them.
    29: {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
}
each_api = pytest.mark.parametrize("key", sorted(REQUESTS), ids=lambda key: REQUESTS[key].name)


class Wire:
    """One connection, one request at a time."""

    def __init__(self, kafka):
        self.socket = socket.create_connection((kafka.host, kafka.port), timeout=DEADLINE_S)
        self.correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, request):
        self.correlation += 1
        request.with_header(correlation_id=self.correlation)
        self.socket.sendall(request.encode(framed=True, header=True))

    def receive(self, request):
        """The response to `request`, which must fill its frame exactly."""
        frame = io.BytesIO(self.frame())
        answer = request.header.get_response_class().decode(frame, version=request.API_VERSION, header=True)
        assert frame.read() == b"", f"bytes behind {answer}"
        assert answer.header.correlation_id == self.correlation
        return answer

    def ask(self, request):
        self.send(request)
        return self.receive(request)

    def frame(self) -> bytes:
        [length] = struct.unpack(">i", self.exactly(4))
        return self.exactly(length)

    def exactly(self, count) -> bytes:
        got = bytearray()
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            assert more, "the broker has closed the connection"
            got += more
        return bytes(got)

    def is_closed_by_peer(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def wire(kafka):
    with Wire(kafka) as connection:
        yield connection


@pytest.fixture(scope="module")
def announced(kafka) -> dict[int, range]:
    with Wire(kafka) as wire:
        answer = wire.ask(ApiVersionsRequest[3](client_software_name="tests", client_software_version="1"))
    return {each.api_key: range(each.min_version, each.max_version + 1) for each in answer.api_keys}


def versions(announced, request) -> list[int]:
    """Versions that the broker announces and kafka-python supports, with Kafka 4's minimum versions."""
    first, last = request.valid_versions
    return [version for version in announced.get(request.API_KEY, ()) if first <= version <= last]


def batch(*values) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, value in enumerate(values):
        builder.append(offset, 1_700_000_000_000, None, value, [])
    return bytes(builder.build())


def test_required_apis_are_announced(announced):
    found = {key: (announced[key][0], announced[key][-1]) for key in WANTED if key in announced}
    assert found == WANTED


@each_api
def test_every_announced_version_is_answered_in_that_version(wire, announced, key):
    request = REQUESTS[key]
    if key not in announced:
        assert key not in WANTED
        pytest.skip("not announced")
    for version in versions(announced, request):
        wire.ask(request[version](**NEEDED.get(key, {})))


def test_each_version_of_produce_and_fetch(wire, announced, make_topic):
    """Fetch 4, the oldest, has neither sessions nor leader epochs."""
    topic = make_topic()
    [topic_id] = [each.topic_id for each in wire.ask(MetadataRequest[12](
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)])).topics]
    sent = []
    for version in versions(announced, ProduceRequest):
        value = f"produced by version {version}".encode()
        data = ProduceRequest.TopicProduceData
        answer = wire.ask(ProduceRequest[version](acks=-1, timeout_ms=1000, topic_data=[data(
            name=topic, topic_id=topic_id,
            partition_data=[data.PartitionProduceData(index=0, records=batch(value))])]))
        [partition] = answer.responses[0].partition_responses
        assert (partition.error_code, partition.base_offset) == (0, len(sent)), f"version {version}"
        sent.append(value)
    for version in versions(announced, FetchRequest):
        fetched = FetchRequest.FetchTopic
        answer = wire.ask(FetchRequest[version](max_wait_ms=1000, min_bytes=1, topics=[fetched(
            topic=topic, topic_id=topic_id,
            partitions=[fetched.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)])]))
        [partition] = answer.responses[0].partitions
        assert (partition.error_code, partition.high_watermark) == (0, len(sent)), f"version {version}"
        assert all(bytes(partition.records).count(value) == 1 for value in sent), f"version {version}"


def test_each_version_of_metadata_and_find_coordinator(kafka, wire, announced, topic, unique):
    for version in versions(announced, MetadataRequest):
        answer = wire.ask(MetadataRequest[version](topics=[MetadataRequest.MetadataRequestTopic(name=topic)]))
        assert [(each.host, each.port) for each in answer.brokers] == [(kafka.host, kafka.port)]
        assert [(each.error_code, each.name, len(each.partitions)) for each in answer.topics] == [(0, topic, 1)]
    for version in versions(announced, FindCoordinatorRequest):
        answer = wire.ask(FindCoordinatorRequest[version](key=unique, coordinator_keys=[unique]))
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.host, found.port) == (0, kafka.host, kafka.port), f"version {version}"


def test_each_version_of_list_offsets_and_offset_fetch(wire, announced, topic, unique):
    asked = ListOffsetsRequest.ListOffsetsTopic
    for version in versions(announced, ListOffsetsRequest):
        answer = wire.ask(ListOffsetsRequest[version](replica_id=-1, topics=[asked(
            name=topic, partitions=[asked.ListOffsetsPartition(partition_index=0, timestamp=-1)])]))
        [partition] = answer.topics[0].partitions
        assert (partition.error_code, partition.offset) == (0, 0), f"version {version}"
    for version in versions(announced, OffsetFetchRequest):
        if version >= 10:
            # Requests by topic ID.
            continue
        by_group, by_topic = OffsetFetchRequest.OffsetFetchRequestGroup, OffsetFetchRequest.OffsetFetchRequestTopic
        answer = wire.ask(OffsetFetchRequest[version](
            group_id=unique, topics=[by_topic(name=topic, partition_indexes=[0])],
            groups=[by_group(group_id=unique, topics=[
                by_group.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])])]))
        topics = answer.groups[0].topics if version >= 8 else answer.topics
        [partition] = topics[0].partitions
        assert (partition.error_code, partition.committed_offset) == (0, -1), f"version {version}"


def test_an_unknown_version_of_api_versions_gets_the_api_list(wire):
    """The response must be in version 0, which future clients can read: KIP-511."""
    request = ApiVersionsRequest[4](client_software_name="tests", client_software_version="1")
    request.with_header(correlation_id=7)
    encoded = bytearray(request.encode(framed=True, header=True))
    encoded[6:8] = struct.pack(">h", 99)
    wire.socket.sendall(encoded)
    frame = wire.frame()
    assert struct.unpack(">ih", frame[:6]) == (7, UNSUPPORTED_VERSION)
    [count] = struct.unpack(">i", frame[6:10])
    assert (18, 0, 4) in [struct.unpack(">hhh", frame[at:at + 6]) for at in range(10, 10 + 6 * count, 6)]
    # The client repeats the request with the announced version.
    wire.correlation = 7
    assert wire.ask(ApiVersionsRequest[0]()).error_code == 0


def header(key, version) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1)


@pytest.mark.parametrize(("key", "version"), [(999, 0), (4, 7), (1, 3), (0, 99)])
def test_unsupported_requests_are_refused(kafka, wire, key, version):
    """Apache Kafka closes the connection; an error response on an open connection is accepted as well."""
    with Wire(kafka) as other:
        other.socket.sendall(struct.pack(">i", len(header(key, version))) + header(key, version))
        first = other.socket.recv(4)
        if first:
            assert struct.unpack(">ih", other.exactly(struct.unpack(">i", first)[0])) == (1, UNSUPPORTED_VERSION)
            assert other.ask(ApiVersionsRequest[0]()).error_code == 0
    assert wire.ask(ApiVersionsRequest[0]()).error_code == 0


@pytest.mark.parametrize("bytes_sent", [
    struct.pack(">i", -1),
    struct.pack(">i", 2**31 - 1),
    # A list of 2^31 - 1 topics in a frame of 14 bytes.
    struct.pack(">i", 14) + header(3, 1) + struct.pack(">i", 2**31 - 1),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
], ids=["negative-length", "two-gigabytes", "lying-array", "http"])
def test_invalid_bytes_close_only_their_connection(kafka, wire, bytes_sent):
    with Wire(kafka) as other:
        other.socket.sendall(bytes_sent)
        assert other.is_closed_by_peer()
    assert wire.ask(ApiVersionsRequest[0]()).error_code == 0


def test_a_batch_that_was_damaged_on_its_way_is_refused(wire, topic):
    damaged = bytearray(batch(b"value"))
    damaged[-3] ^= 1
    data = ProduceRequest.TopicProduceData
    answer = wire.ask(ProduceRequest[9](acks=-1, timeout_ms=1000, topic_data=[data(
        name=topic, partition_data=[data.PartitionProduceData(index=0, records=bytes(damaged))])]))
    [partition] = answer.responses[0].partition_responses
    # CORRUPT_MESSAGE
    assert partition.error_code == 2
    asked = ListOffsetsRequest.ListOffsetsTopic
    listed = wire.ask(ListOffsetsRequest[7](replica_id=-1, topics=[asked(
        name=topic, partitions=[asked.ListOffsetsPartition(partition_index=0, timestamp=-1)])]))
    assert listed.topics[0].partitions[0].offset == 0
