"""Hooks of schemathesis for test_fuzz.py: they keep waits short, and leave out what OpenAPI cannot describe."""

import contextlib

import schemathesis
from schemathesis import GenerationMode

# Longest wait for a message in the generated requests.
WAIT_MS = 10
WAIT_MS_MAX = 60_000
OCTETS = "application/octet-stream"
# The user that sends the requests.
USER = "the-fuzzer-itself"


def shorten(parameters):
    """Shortens a valid wait, whatever its type; an invalid one stays."""
    wait_ms = parameters.get("wait_ms") if isinstance(parameters, dict) else None
    with contextlib.suppress(TypeError, ValueError):
        if WAIT_MS < float(wait_ms) <= WAIT_MS_MAX:
            parameters["wait_ms"] = type(wait_ms)(WAIT_MS)


@schemathesis.hook
def before_call(context, case, kwargs):
    if (case.path_parameters or {}).get("name") == USER:
        # It stays as it is; schemathesis knows its name from responses.
        case.path_parameters["name"] = "somebody"
    if case.operation.path.endswith("/receive"):
        shorten(case.query)
        shorten(case.body)
    if case.operation.path.endswith("/messages") and case.media_type == "*/*":
        # schemathesis would send JSON, which is described separately.
        case.media_type = OCTETS


@schemathesis.hook
def filter_case(context, case):
    """Leaves out requests that contradict themselves in a way that OpenAPI cannot describe."""
    body = case.body if isinstance(case.body, dict) else {}
    if case.operation.path.endswith("/messages"):
        # schemathesis takes JSON for an example of `*/*`, although it is described separately.
        is_valid = case.meta is None or case.meta.generation.mode == GenerationMode.POSITIVE
        if is_valid and case.media_type == "application/json" and "messages" not in body:
            return False
        # A deduplication id in the query is for one message.
        messages = body.get("messages")
        return not (isinstance(messages, list) and len(messages) > 1 and "dedup_id" in (case.query or {}))
    # A queue cannot be its own dead-letter queue.
    name = (case.path_parameters or {}).get("name")
    return name is None or body.get("dead_letter_queue") != name
