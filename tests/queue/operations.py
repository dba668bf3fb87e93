"""The operations door by httpx: every answer is compared with the OpenAPI description that the door gives of itself."""

import re
import time

import httpx
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

DEADLINE_S = 30


def eventually(condition, what, deadline_s=DEADLINE_S):
    """Asks until `condition` gives something true, and returns that; fails after the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        time.sleep(0.005)
    return found


class Description:
    """What the door says of its answers."""

    def __init__(self, document):
        self.document = document
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:door", resource)
        self._paths = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), item) for path, item in document["paths"].items()]

    def check(self, method, path, status, kind, body):
        """Fails if an answer is not among those that are described for this request."""
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
        # References of the description begin at its root.
        schema = absolute(answer["content"][kind]["schema"])
        Draft202012Validator(schema, registry=self._registry).validate(body)

    def _at(self, reference):
        found = self.document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return found


def absolute(schema):
    """A schema whose references to other parts of the description say so."""
    if isinstance(schema, dict):
        resolved = {name: absolute(value) for name, value in schema.items()}
        if str(schema.get("$ref", "")).startswith("#"):
            resolved["$ref"] = f"urn:door{schema['$ref']}"
        return resolved
    return [absolute(each) for each in schema] if isinstance(schema, list) else schema


class Operations:
    """The door of one broker."""

    def __init__(self, url):
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=DEADLINE_S, trust_env=False)
        self.description = Description(self._client.get("/openapi.json").json())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def ask(self, method, path, **request) -> httpx.Response:
        """An answer, whatever it is. `request`: as httpx has it."""
        response = self._client.request(method, path, **request)
        body = response.json() if response.content else None
        kind = response.headers.get("content-type")
        self.description.check(method, response.url.path, response.status_code, kind, body)
        return response

    def done(self, method, path, **request):
        """The body of an answer that is a success."""
        response = self.ask(method, path, **request)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def refused(self, method, path, status, word, **request):
        """The body of a problem with this status, of the type that ends with this word."""
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
        """What is known of a group."""
        return next(group for group in self.info(queue)["groups"] if group["name"] == name)

    def send(self, queue, *bodies, **more):
        """Sends texts, and returns the offsets. `more`: what all of them have."""
        messages = [{"body": body, **more} for body in bodies]
        answer = self.done("POST", f"/v1/queues/{queue}/messages", json={"messages": messages})
        return [result["offset"] for result in answer["results"]]

    def receive(self, queue, **parameters):
        """Messages; waits for the first of them unless something else is said."""
        answer = self.done("POST", f"/v1/queues/{queue}/receive", params={"wait_ms": 10_000, **parameters})
        return answer["messages"]

    def settle(self, verdict, queue, *messages, params=None, **more):
        """Gives a verdict on messages or receipts, and returns what became of each."""
        receipts = [each if isinstance(each, str) else each["receipt"] for each in messages]
        body = {"receipts": receipts, **more}
        answer = self.done("POST", f"/v1/queues/{queue}/{verdict}", json=body, params=params)
        assert [result["receipt"] for result in answer["results"]] == receipts
        return [result["outcome"] for result in answer["results"]]

    def ack(self, queue, *messages, **more):
        assert set(self.settle("ack", queue, *messages, **more)) == {"ok"}

    def peek(self, queue, **parameters):
        return self.done("GET", f"/v1/queues/{queue}/peek", params=parameters)["messages"]

    def empty(self, queue):
        """Waits until all messages of a queue are settled."""
        eventually(lambda: self.info(queue)["messages"] == 0, f"{queue} is empty")
