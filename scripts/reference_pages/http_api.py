"""http-api.md: the routes of `convrec serve`, from the service's own OpenAPI description."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from recipes.serving.errors import TYPES
from recipes.serving.gate import OPEN
from recipes.serving.http import build
from recipes.serving.keys import KEY_VARIABLE, get_required_role
from recipes.serving.schema import ModelSettings, ServiceSettings
from reference_pages.markdown import code, table

Schema = Mapping[str, Any]  # of OpenAPI
UNUSED = str(HTTPStatus.UNPROCESSABLE_ENTITY.value)  # FastAPI lists it; the service answers 400 instead
INTERNAL = ("HTTPValidationError", "ValidationError")  # FastAPI's own, which the service does not answer with


def http_api_page() -> str:
    """Return the page."""
    settings = ServiceSettings(models=[ModelSettings(name="model", path="model")], loopback=True)
    openapi = build(settings, {}, None).openapi()
    routes = [(method, path, route) for path, methods in openapi["paths"].items() for method, route in methods.items()]
    overview = table(
        ("request", "role", "what it does"),
        ((code(f"{method.upper()} {path}"), _role(method, path), _summary(route)) for method, path, route in routes),
    )
    models = {name: schema for name, schema in openapi["components"]["schemas"].items() if name not in INTERNAL}
    return f"""
# HTTP API
`convrec serve` answers these requests. [Serving](../how-to/serve.md) has examples. A running service describes itself
at `/docs` and `/openapi.json`, and serves the chat page at `/`.

{overview}

## Keys and roles
Send a key as `Authorization: Bearer KEY`. The key is `{KEY_VARIABLE}`, or one of the file given by `--keys`, where each
key has a role. `admin` includes `feedback`, and `feedback` includes `read`. {KEY_VARIABLE} has the role `admin`. A
service that only this machine can reach needs no key.

## Errors
The body of an error is `{{"error": {{"message", "type", "param", "code"}}}}`, as in OpenAI's API. `param` names the
field, `code` is the status.

{table(("status", "`type`", "meaning"), _error_rows(routes))}

{chr(10).join(_route_sections(routes))}
## Schemas
{chr(10).join(_schema_sections(models))}
"""


def _role(method: str, path: str) -> str:
    return "no key needed" if path in OPEN else get_required_role(method.upper(), path)


def _summary(route: Schema) -> str:
    return str(route.get("description", "")).split(".")[0]


def _error_rows(routes: list[tuple[str, str, Schema]]) -> Iterator[tuple[str, str, str]]:
    """Yield every status that a request can be refused with."""
    described = {
        int(status): answer["description"]
        for _, _, route in routes
        for status, answer in route["responses"].items()
        if int(status) >= HTTPStatus.BAD_REQUEST and status != UNUSED
    }
    statuses = sorted({*described, *TYPES, HTTPStatus.INTERNAL_SERVER_ERROR.value})
    for status in statuses:
        kind = TYPES.get(status, "server_error")
        yield code(str(status)), code(kind), described.get(status, HTTPStatus(status).phrase.lower())


def _route_sections(routes: list[tuple[str, str, Schema]]) -> Iterator[str]:
    for method, path, route in routes:
        yield f"## {method.upper()} {path}\n\n{' '.join(str(route.get('description', '')).split())}\n"
        yield _route_facts(method, path, route) + "\n"
        if parameters := route.get("parameters"):
            rows = (_field_row(one["name"], one["schema"], one.get("required", False)) for one in parameters)
            yield table(("parameter", "type", "default", "meaning"), rows) + "\n"


def _route_facts(method: str, path: str, route: Schema) -> str:
    """Return a list of the role, the body, the answer and the errors."""
    answers = (
        f"{kind}, {_describe_type(answer['schema'])}" if answer.get("schema") else kind
        for kind, answer in route["responses"]["200"]["content"].items()
    )
    facts = {"Role": _role(method, path)}
    if body := route.get("requestBody"):
        facts["Body"] = _describe_type(body["content"]["application/json"]["schema"])
    facts["Answer"] = "; ".join(answers)
    if errors := [code(status) for status in route["responses"] if status not in ("200", UNUSED)]:
        facts["Errors"] = ", ".join(errors)
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def _schema_sections(schemas: Mapping[str, Schema]) -> Iterator[str]:
    for name, schema in schemas.items():
        if fields := schema.get("properties"):
            required = schema.get("required", ())
            rows = (_field_row(field, one, field in required) for field, one in fields.items())
            text = " ".join(schema.get("description", "").split())
            parts = [f"### {name}", text, table(("field", "type", "default", "meaning"), rows)]
            yield "\n\n".join(filter(None, parts)) + "\n"


def _field_row(name: str, schema: Schema, is_required: bool) -> list[str]:
    default = "required" if is_required else code(json.dumps(schema["default"])) if "default" in schema else ""
    return [code(name), _describe_type(schema), default, schema.get("description", "")]


def _describe_type(schema: Schema) -> str:
    """Return the type of a value with its bounds, as "list of string (at most 16 items)"."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if alternatives := schema.get("anyOf"):
        return " or ".join(map(_describe_type, alternatives))
    if choices := schema.get("enum"):
        return "one of " + ", ".join(code(str(choice)) for choice in choices)
    if "const" in schema:
        return code(str(schema["const"]))
    kind = schema.get("type", "anything")
    if kind == "array":
        element = schema.get("items", {})
        inner = _describe_type(element)
        kind = f"list of [{inner}]" if "anyOf" in element else f"list of {inner}"
    bounds = ", ".join(_describe_bounds(schema))
    return f"{kind} ({bounds})" if bounds else kind


def _describe_bounds(schema: Schema) -> Iterator[str]:
    if schema.get("minimum") == -(2**63):
        yield "64 bits"
    else:
        yield from _describe_range(schema.get("minimum"), schema.get("maximum"), "")
        if "exclusiveMinimum" in schema:
            yield f"above {schema['exclusiveMinimum']:,}"
        if "exclusiveMaximum" in schema:
            yield f"below {schema['exclusiveMaximum']:,}"
    yield from _describe_range(schema.get("minLength") or None, schema.get("maxLength"), " characters")
    yield from _describe_range(schema.get("minItems") or None, schema.get("maxItems"), " items")
    yield from _describe_range(None, schema.get("maxProperties"), " entries")
    if "pattern" in schema:
        yield f"matching `{schema['pattern']}`"


def _describe_range(least: float | None, most: float | None, unit: str) -> Iterator[str]:
    if least is not None and most is not None:
        yield f"{least:,} to {most:,}{unit}"
    elif most is not None:
        yield f"at most {most:,}{unit}"
    elif least is not None:
        yield f"at least {least:,}{unit}"
