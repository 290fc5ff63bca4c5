"""Random requests that the OpenAPI schema allows, and nearly allows, to every address: no unexpected error."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from serve.running import NAMES, Running
from serve.test_access import send

STREAMS = ("cam-1", "team/cam-2", "new", "none", "_canary", "../x")
METHODS = ("anchored_mixture_online", "tda", "zero_shot", "tda+filter", "adapt_transductive", "none")

texts = st.one_of(st.sampled_from(["", "a", "b", "cat", "é", "\x00", "x" * 300]), st.text(max_size=10))
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        texts,
        st.just("\ud800"),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def vectors(draw: Any) -> list[float]:
    """Of unit length or not, of the dimension of the streams (16) or another one."""
    dimension = draw(st.sampled_from([16, 16, 16, 1, 3]))
    at = draw(st.integers(0, dimension - 1))
    length = draw(st.sampled_from([1, 1, 1.0, 0.5, -1.0, 0, 1e300, float("nan")]))
    return [length if i == at else 0.0 for i in range(dimension)]


def values(schema: dict[str, Any], schemas: dict[str, Any], name: str = "") -> st.SearchStrategy:
    """What a JSON schema of the interface allows; names of fields select values that lead further."""
    if "$ref" in schema:
        return values(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    if "anyOf" in schema:
        return st.one_of(*(values(one, schemas, name) for one in schema["anyOf"]))
    if name in ("stream_id", "stream"):
        return st.sampled_from(STREAMS)
    if name == "method":
        return st.sampled_from(METHODS)
    if name in ("features", "prototypes"):
        return st.lists(vectors(), min_size=1, max_size=5)
    if name in ("classes", "label"):
        return st.just(list(NAMES)) if name == "classes" else st.sampled_from([*NAMES, "none"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return st.one_of(*(values({**schema, "type": one}, schemas, name) for one in kind))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if kind == "object":
        fields = schema.get("properties")
        if not fields:
            return st.dictionaries(texts, anything, max_size=3)
        required = schema.get("required", [])
        given_fields = {one: values(fields[one], schemas, one) for one in fields}
        return st.fixed_dictionaries(
            {one: made for one, made in given_fields.items() if one in required},
            optional={one: made for one, made in given_fields.items() if one not in required},
        )
    if kind == "array":
        return st.lists(
            values(schema.get("items", {}), schemas, name), min_size=min(1, schema.get("minItems", 0)), max_size=4
        )
    simple = {
        "string": texts,
        "boolean": st.booleans(),
        "null": st.none(),
        "integer": st.one_of(st.integers(0, 20), st.integers(-(2**65), 2**65)),
        "number": st.one_of(st.floats(0.1, 1000), st.floats()),
    }
    return simple.get(kind, anything)


@st.composite
def requests(draw: Any, schema: dict[str, Any]) -> tuple[str, str, dict[str, str], bytes | None]:
    """Method, address, headers and body."""
    schemas = schema["components"]["schemas"]
    path = draw(st.sampled_from(sorted(one for one in schema["paths"] if not one.endswith("/events"))))
    method = draw(st.sampled_from(sorted(schema["paths"][path])))
    operation = schema["paths"][path][method]
    query = []
    for parameter in operation.get("parameters", []):
        value = draw(values(parameter["schema"], schemas, parameter["name"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", escaped(value))
        elif value is not None:
            query.append(f"{quote(parameter['name'])}={escaped(value)}")
    headers = {"Content-Type": "application/json"}
    if draw(st.booleans()):
        headers["Idempotency-Key"] = draw(st.sampled_from(["a", "b", "c", ""]))
    body = None
    if "requestBody" in operation:
        allowed = values(operation["requestBody"]["content"]["application/json"]["schema"], schemas)
        broken = st.one_of(anything, allowed.map(lambda one: {**one, "extra": 1} if isinstance(one, dict) else one))
        body = json.dumps(draw(st.one_of(allowed, allowed, allowed, broken))).encode()
    return method.upper(), path + ("?" + "&".join(query) if query else ""), headers, body


def escaped(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return quote(text.encode("utf-8", "replace"), safe="/")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory, problem):
    running = Running(str(tmp_path_factory.mktemp("fuzz") / "store"))
    for name in STREAMS[:2]:
        stream = running.client().stream(name)
        stream.create(NAMES, problem[1])
        stream.samples(problem[0][:20], keys=[f"k{i}" for i in range(20)])
        stream.take_snapshot()
        stream.label({1: "a"})
    yield running
    running.stop()


def test_every_operation_is_described(fuzzed):
    """With a summary, and an example of every body."""
    schema = fuzzed.client().request("GET", "/openapi.json")
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                model = content["schema"].get("$ref", "").rpartition("/")[2]
                shown = "example" in content or "examples" in schema["components"]["schemas"].get(model, {})
                assert shown or kind != "application/json", (method, path)


@pytest.mark.parametrize("examples", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_random_requests_are_no_unexpected_errors(fuzzed, problem, examples):
    schema = fuzzed.client().request("GET", "/openapi.json")
    reached = set()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(schema))
    def ask(request):
        method, path, headers, body = request
        status, answer = send(fuzzed.url, method, path, headers, body)
        assert status < 500, (request, answer)
        reached.add((method, status))
        if status >= 400:
            error = answer["error"]
            assert isinstance(error, str if path.startswith("/v2") else dict), (request, answer)
            assert fuzzed.location not in str(answer)
        if method == "DELETE" and status == 200:
            name = answer["deleted"]
            fuzzed.client().stream(name).create(NAMES, problem[1])

    ask()
    assert {("GET", 200), ("POST", 200), ("GET", 404), ("POST", 422)} <= reached
    fuzzed.client().ready()
