"""What the endpoints say about themselves in OpenAPI beyond their types."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.api.problems import PROBLEM_JSON, Problem

_MEANING = {
    400: "The request is not valid; `errors` names the fields.",
    401: "The API key is missing or not valid.",
    403: "No key exists and the request is not from this machine, or the tenant may not store more (`quota`, `used`, `limit`).",
    404: "There is no such object in this tenant.",
    408: "The body stopped arriving.",
    409: "The object's state, or a request with the same Idempotency-Key, does not allow this now.",
    413: "Larger than this installation accepts.",
    415: "Not a kind of file that can be read.",
    422: "Well formed, but it cannot be carried out; `code` says why.",
    429: "The tier or the tenant has as much of it as it may have; `code` says of what, `Retry-After` when to come back.",
    503: "The service cannot do it now; nothing was accepted.",
    507: "There is no room to store the file.",
}

_ESTIMATE_OPTIONS: dict[str, Any] = {
    "password": {"type": "string", "maxLength": 1024},
    "ocr": {"type": "string", "enum": ["auto", "never", "force"], "default": "auto"},
}
_UPLOAD_OPTIONS: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 1024},
    **_ESTIMATE_OPTIONS,
    "warm": {"type": "boolean", "default": True},
    "pin_seconds": {"type": "integer", "minimum": 1, "description": "Keep the prefix warm for this long."},
    "shared": {
        "type": "boolean",
        "default": False,
        "description": "Let its computed prefix serve every tenant that marked the same document shared.",
    },
    "metadata": {"type": "string", "description": "A JSON object.", "examples": ['{"case": 17}']},
    "replaces": {
        "type": "string",
        "maxLength": 64,
        "description": "The document this is a new version of.",
        "examples": ["doc_0198c0ffee0198c0ffee0198c0ffee01"],
    },
}
_BINARY = {"type": "string", "format": "binary"}


def _body(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["file"],
                        "additionalProperties": False,
                        "properties": {"file": _BINARY, **options},
                    }
                },
                "application/pdf": {"schema": _BINARY},
                "application/octet-stream": {"schema": _BINARY},
            },
        }
    }


UPLOAD_BODY = _body(_UPLOAD_OPTIONS)
"""The body of an upload, which FastAPI cannot know because it is read as a stream."""
ESTIMATE_BODY = _body(_ESTIMATE_OPTIONS)
"""The same of an estimate."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of an endpoint, each a problem document.

    Where a key may be asked for (401), a request from elsewhere may be refused while there is none (403). A body that may
    be too long (413) may also stop arriving (408).
    """
    if 401 in statuses:
        statuses = tuple(sorted({*statuses, 403}))
    if 413 in statuses:
        statuses = tuple(sorted({*statuses, 408}))
    return {
        status: {
            "model": Problem,
            "description": f"{HTTPStatus(status).phrase}. {_MEANING[status]}",
            "content": {PROBLEM_JSON: {}},
        }
        for status in statuses
    }


def operation_id(route: APIRoute) -> str:
    """Endpoint functions have telling, unique names; they are the operation ids."""
    return route.name


def install(app: FastAPI) -> None:
    """Show the service's own error shape instead of FastAPI's: it answers invalid requests with 400 problems."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        schema = original()
        for path in schema["paths"].values():
            for operation in path.values():
                _correct(operation)
        for name in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(name, None)
        return schema

    app.openapi = openapi  # ty: ignore  # FastAPI documents this way of changing the schema.


def _correct(operation: dict[str, Any]) -> None:
    if "security" in operation:
        # While no key exists none is needed.
        operation["security"] = [*operation["security"], {}]
    responses = operation["responses"]
    for status, response in list(responses.items()):
        content = cast("dict[str, Any]", response.get("content", {}))
        plain = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        if plain.endswith("/HTTPValidationError"):
            del responses[status]
        elif plain.endswith("/Problem"):
            response["content"] = {PROBLEM_JSON: content["application/json"]}
        elif "application/jsonl" in content:
            content["application/jsonl"] = content.pop("application/json")
