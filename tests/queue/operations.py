"""A client of the HTTP API with httpx: every response is checked against the broker's OpenAPI description."""

import re
import time

import httpx
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

DEADLINE_S = 30


def eventually(condition, what, deadline_s=DEADLINE_S):
    """Calls `condition` until its result is true, and returns the result; fails after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.005)
    return found


class Description:
    """The OpenAPI description of the broker."""

    def __init__(self, document):
        self.document = document
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:listener", resource)
        self._paths = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), item) for path, item in document["paths"].items()]

    def check(self, method, path, status, kind, body):
        """Fails if a response does not match the description of this request."""
        item = next((item for pattern, item in self._paths if pattern.fullmatch(path)), None)
        if item is None or method.lower() not in item:
            assert status in (404, 405), f"{method} {path} is not described, and answered with {status}"
            answer = {"$ref": "#/components/responses/Problem"}
        else:
            answers = item[method.lower()]["responses"]
            assert str(status) in answers or status >= 400, f"{method} {path} does not tell of {status}"
            answer = answers.get(str(status)) or answers["default"]
        while "$ref" in answer:
            answer = self._at(answer["$ref"])
        if "content" not in answer:
            assert body is None
            return
        assert kind in answer["content"], f"{method} {path}: {status} is {kind}, not {list(answer['content'])}"
        # References in the description are relative to its root.
        schema = absolute(answer["content"][kind]["schema"])
        Draft202012Validator(schema, registry=self._registry).validate(body)

    def _at(self, reference):
        found = self.document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found


def absolute(schema):
    """A copy of a schema with absolute references."""
    if isinstance(schema, dict):
        resolved = {name: absolute(value) for name, value in schema.items()}
        if str(schema.get("$ref", "")).startswith("#"):
            resolved["$ref"] = f"urn:listener{schema['$ref']}"
        return resolved
    return [absolute(each) for each in schema] if isinstance(schema, list) else schema


class Operations:
    """The HTTP API of one broker."""

    def __init__(self, url):
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False)
        self.description = Description(self._client.get("/openapi.json").json())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def ask(self, method, path, **request) -> httpx.Response:
        """Sends a request and returns the response. `request`: arguments of httpx."""
        response = self._client.request(method, path, **request)
        body = response.json() if response.content else None
        kind = response.headers.get("content-type")
        self.description.check(method, response.url.path, response.status_code, kind, body)
        return response

    def done(self, method, path, **request):
        """Sends a request that must succeed, and returns the body."""
        response = self.ask(method, path, **request)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def refused(self, method, path, status, word, **request):
        """Sends a request that must fail with this status and problem type, and returns the body."""
        response = self.ask(method, path, **request)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert (problem["type"], problem["status"]) == (f"urn:mainstem:problem:{word}", status)
        assert problem["title"] and problem["detail"]
        return problem

    def create(self, queue, **settings):
        return self.done("PUT", f"/v1/queues/{queue}", json=settings)

    def info(self, queue):
        return self.done("GET", f"/v1/queues/{queue}")

    def group(self, queue, name="default"):
        """The state of a group."""
        return next(group for group in self.info(queue)["groups"] if group["name"] == name)

    def send(self, queue, *bodies, **more):
        """Sends texts, and returns the offsets. `more`: fields of all messages."""
        messages = [{"body": body, **more} for body in bodies]
        answer = self.done("POST", f"/v1/queues/{queue}/messages", json={"messages": messages})
        return [result["offset"] for result in answer["results"]]

    def receive(self, queue, **parameters):
        """Receives messages; waits up to 10 s for the first by default."""
        answer = self.done("POST", f"/v1/queues/{queue}/receive", params={"wait_ms": 10_000, **parameters})
        return answer["messages"]

    def settle(self, action, queue, *messages, params=None, **more):
        """Sends `ack`, `nack`, `reject` or `extend` for messages or receipts, and returns the outcomes."""
        receipts = [each if isinstance(each, str) else each["receipt"] for each in messages]
        body = {"receipts": receipts, **more}
        answer = self.done("POST", f"/v1/queues/{queue}/{action}", json=body, params=params)
        assert [result["receipt"] for result in answer["results"]] == receipts
        return [result["outcome"] for result in answer["results"]]

    def ack(self, queue, *messages, **more):
        assert set(self.settle("ack", queue, *messages, **more)) == {"ok"}

    def peek(self, queue, **parameters):
        return self.done("GET", f"/v1/queues/{queue}/peek", params=parameters)["messages"]

    def empty(self, queue):
        """Waits until all messages of a queue are settled."""
        eventually(lambda: self.info(queue)["messages"] == 0, f"{queue} is empty")
