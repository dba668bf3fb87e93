"""The JSON Schema of configuration files, as an editor uses it: it accepts what the broker accepts."""

import json
import re
import subprocess
import tomllib

import pytest
from jsonschema import Draft7Validator

from broker import ROOT, binary

DEADLINE_S = 30


def printed(*arguments: str) -> str:
    command = [str(binary()), "config", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    schema = json.loads(printed("schema"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def errors(validator: Draft7Validator, text: str) -> list[str]:
    found = validator.iter_errors(tomllib.loads(text))
    return sorted(error.json_path for error in found)


def test_all_keys_with_their_defaults_are_valid(validator):
    effective = printed("show", "--effective")
    assert len(tomllib.loads(effective)["mqtt"]) > 30
    assert errors(validator, effective) == []


def test_the_examples_of_the_pages_are_valid(validator):
    sections = set(validator.schema["properties"])
    count = 0
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.S | re.M):
            if not sections.isdisjoint(tomllib.loads(block)):
                assert errors(validator, block) == [], f"{page.name}:\n{block}"
                count += 1
    assert count >= 10


@pytest.mark.parametrize(
    "text, path",
    [
        ("[mqtt]\nmax_quued = 3\n", "$.mqtt"),
        ("[mqt]\n", "$"),
        ("[mqtt]\nmaximum_qos = 3\n", "$.mqtt.maximum_qos"),
        ("[mqtt]\nmax_queued_bytes = \"16 apples 3\"\n", "$.mqtt.max_queued_bytes"),
        ("[mqtt]\nqueue_overflow = \"drop\"\n", "$.mqtt.queue_overflow"),
        ("[mqtt]\nlisten = 1883\n", "$.mqtt.listen"),
        ("[kafka]\nsasl = \"PLAIN\"\n", "$.kafka.sasl"),
        ("[[listener]]\nname = \"a\"\nprotocol = \"smtp\"\nlisten = \"127.0.0.1:0\"\n", "$.listener[0].protocol"),
        ("[[listener]]\nname = \"a\"\nprotocol = \"mqtt\"\n", "$.listener[0]"),
        ("[[queue]]\nname = \"jobs\"\nlease = 1\n", "$.queue[0]"),
    ],
)
def test_what_the_broker_refuses_is_invalid(validator, tmp_path, text, path):
    assert errors(validator, text) == [path]
    file = tmp_path / "mainstem.toml"
    file.write_text(text)
    checked = subprocess.run([str(binary()), "config", "check", str(file)], capture_output=True, timeout=DEADLINE_S)
    assert checked.returncode == 1


def test_units_and_inline_tables_are_valid(validator):
    text = (
        "[mqtt]\nmax_queued_bytes = \"16MiB\"\n[security]\nallow_anonymous = true\n[[listener]]\nname = \"a\"\n"
        "protocol = \"mqtt\"\nlisten = \"127.0.0.1:0\"\nwebsocket = {}\ntls = { certificate = \"c\", key = \"k\" }\n"
        "[[queue]]\nname = \"jobs\"\nlease_ms = \"30s\"\n"
    )
    assert errors(validator, text) == []
