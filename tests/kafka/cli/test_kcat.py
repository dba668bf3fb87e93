"""kcat: the command line of librdkafka, as Debian ships it (an older one than confluent-kafka's)."""

import json
import subprocess

import pytest

DEADLINE_S = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def kcat(kafka, *arguments, stdin="") -> str:
    """Runs kcat, which must succeed, and returns its output."""
    done = subprocess.run(["kcat", "-b", kafka.bootstrap, *arguments], input=stdin, capture_output=True, text=True,
                          timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def test_metadata(kafka, make_topic):
    topic = make_topic(3)
    listed = json.loads(kcat(kafka, "-L", "-J", "-t", topic))
    assert [broker["name"] for broker in listed["brokers"]] == [kafka.bootstrap]
    [described] = listed["topics"]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert {each["leader"] for each in described["partitions"]} == {listed["brokers"][0]["id"]}


@pytest.mark.parametrize("codec", CODECS)
def test_piped_messages_are_received(kafka, topic, codec):
    kcat(kafka, "-P", "-t", topic, "-z", codec, stdin=lines(1000))
    assert kcat(kafka, "-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines(1000)


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_acks(kafka, topic, acks):
    kcat(kafka, "-P", "-t", topic, "-X", f"acks={acks}", stdin=lines(10))
    assert kcat(kafka, "-C", "-t", topic, "-o", "beginning", "-c", "10", "-q") == lines(10)


def test_key_headers_partition_and_offset(kafka, make_topic):
    topic = make_topic(2)
    kcat(kafka, "-P", "-t", topic, "-p", "1", "-K:", "-H", "a=1", "-H", "b=2", stdin="key:value\n")
    got = kcat(kafka, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k|%s|%h|%p|%o\n")
    assert got == "key|value|a=1,b=2|1|0\n"


def test_null_value(kafka, topic):
    kcat(kafka, "-P", "-t", topic, "-K:", "-Z", stdin="gone:\n")
    assert kcat(kafka, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k %S\n") == "gone -1\n"


def test_receives_the_last_records(kafka, topic):
    kcat(kafka, "-P", "-t", topic, stdin=lines(10))
    assert kcat(kafka, "-C", "-t", topic, "-o", "-3", "-e", "-q") == "line 7\nline 8\nline 9\n"


def test_a_group_reads_each_record_once(kafka, make_topic, unique):
    topic = make_topic(3)
    kcat(kafka, "-P", "-t", topic, stdin=lines(300))
    settings = ["-X", "auto.offset.reset=earliest", "-e", "-q"]
    first = kcat(kafka, "-G", unique, *settings, topic)
    assert sorted(first.splitlines()) == sorted(lines(300).splitlines())
    kcat(kafka, "-P", "-t", topic, stdin="more\n")
    assert kcat(kafka, "-G", unique, *settings, topic) == "more\n"


def test_offset_by_time(kafka, topic):
    kcat(kafka, "-P", "-t", topic, stdin=lines(3))
    assert kcat(kafka, "-Q", "-t", f"{topic}:0:0") == f"{topic} [0] offset 0\n"
    assert kcat(kafka, "-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset 3\n"


def test_an_idempotent_producer(kafka, topic):
    kcat(kafka, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin=lines(5000))
    assert kcat(kafka, "-C", "-t", topic, "-o", "beginning", "-e", "-q") == lines(5000)


def test_a_transaction(kafka, topic, unique):
    kcat(kafka, "-P", "-t", topic, "-X", f"transactional.id={unique}", stdin=lines(100))
    read = ["-C", "-t", topic, "-o", "beginning", "-e", "-q"]
    assert kcat(kafka, *read, "-X", "isolation.level=read_committed") == lines(100)


def test_producing_creates_the_topic(kafka, unique):
    kcat(kafka, "-P", "-t", unique, stdin="first\n")
    assert kcat(kafka, "-C", "-t", unique, "-o", "beginning", "-e", "-q") == "first\n"
