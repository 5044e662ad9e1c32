"""Errors as problem documents (RFC 9457): one shape for everything that is not a success."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from service import errors
from service.errors import (
    InvalidRequest,
    LongreadError,
    MethodNotAllowed,
    NotFound,
    RequestStalled,
    RequestTooLarge,
    ServiceError,
)

log = structlog.stdlib.get_logger(__name__)

PROBLEM_JSON = "application/problem+json"
_UNAVAILABLE_RETRY_SECONDS = 5
_CLIENT_GONE = 499


class FieldError(BaseModel):
    """What is wrong with one field of a request."""

    field: str
    message: str


class Problem(BaseModel):
    """A problem document (RFC 9457). Facts such as limits and counts are further members."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:longread:problem:question_too_long"])
    title: str = Field(examples=["The question is longer than this installation accepts"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["The question has 2210 tokens; 1024 are accepted."])
    code: str = Field(examples=["question_too_long"], description="Stable; switch on this.")
    request_id: str = Field(examples=["0198c0ffee0198c0ffee0198c0ffee01"])
    errors: list[FieldError] | None = Field(default=None, description="Offending fields of an invalid request.")


def problem_of(error: LongreadError, request_id: str) -> dict[str, Any]:
    """The problem document of an error of the tree."""
    facts = {name: value for name, value in error.facts.items() if name != "retry_after_seconds"}
    return {
        "type": f"urn:longread:problem:{error.code}",
        "title": error.title(),
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "request_id": request_id,
        **facts,
    }


def problem_response(error: LongreadError, request_id: str) -> Response:
    """The error as a response, with ``Retry-After`` where trying again helps."""
    headers: dict[str, str] = {}
    retry_after = error.facts.get("retry_after_seconds")
    if retry_after is not None:
        headers["Retry-After"] = str(math.ceil(retry_after))
    elif isinstance(error, ServiceError) and error.retryable:
        headers["Retry-After"] = str(_UNAVAILABLE_RETRY_SECONDS)
    elif isinstance(error, errors.IdempotencyInFlight):
        headers["Retry-After"] = "1"
    if isinstance(error, errors.Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="longread"'
    return JSONResponse(
        problem_of(error, request_id), status_code=error.status, headers=headers, media_type=PROBLEM_JSON
    )


def request_id_of(request: Request) -> str:
    return request.scope.get("state", {}).get("request_id", "")


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem document."""

    async def on_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, LongreadError)
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("service_error", code=error.code, cause=type(error.__cause__).__name__)
        return problem_response(error, request_id_of(request))

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem_response(_invalid(error.errors(), request.headers.get("content-type")), request_id_of(request))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = problem_response(_of_http(request, error), request_id_of(request))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(_allowed(request))
        return response

    async def on_gone(request: Request, error: Exception) -> Response:
        del request, error
        # Nobody reads this; the status is what the log shows.
        return Response(status_code=_CLIENT_GONE)

    app.add_exception_handler(LongreadError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ClientDisconnect, on_gone)


def invalid_field(field: str, message: str) -> InvalidRequest:
    """The error of one field that only the endpoint can check."""
    return InvalidRequest(f"{field}: {message}", errors=[{"field": field, "message": message}])


def invalid_values(error: ValidationError) -> InvalidRequest:
    """The error of values that only the endpoint can put into their model."""
    return _of_fields(
        [{"field": ".".join(map(str, e["loc"])) or "body", "message": _message(e)} for e in error.errors()]
    )


def _of_fields(fields: list[dict[str, str]]) -> InvalidRequest:
    shown = "; ".join(f"{f['field']}: {f['message']}" for f in fields[:3])
    return InvalidRequest(shown or "The request is not valid.", errors=fields)


def _invalid(found: Sequence[Any], content_type: str | None) -> LongreadError:
    if any(error["loc"][:1] == ("path",) for error in found):
        # A malformed id names nothing that exists.
        return NotFound("There is no such object.")
    fields: list[dict[str, str]] = []
    for error in found:
        place = [str(part) for part in error["loc"]]
        if error["type"] == "json_invalid":
            fields.append({"field": "body", "message": f"Not valid JSON: {error['ctx']['error']}."})
            continue
        if isinstance(error["input"], bytes):
            # FastAPI hands on unread what is not declared to be JSON.
            fields.append({"field": "body", "message": _not_json(content_type)})
            continue
        name = ".".join(place[1:]) or place[0]
        fields.append({"field": name, "message": _message(error)})
    return _of_fields(fields)


def _not_json(content_type: str | None) -> str:
    given = f"this body is declared as {content_type}" if content_type else "this body has no content type"
    return f"JSON with the header `content-type: application/json` is expected; {given}."


def _message(error: Any) -> str:
    if error["type"] in ("too_long", "too_short") and isinstance(error["input"], str):
        # Pydantic says "items" of a text whose length is checked beside something else.
        kind, limit = ("most", "max_length") if error["type"] == "too_long" else ("least", "min_length")
        has, limit = len(error["input"]), error["ctx"][limit]
        return f"must have at {kind} {limit} characters; it has {has}"
    return error["msg"].removeprefix("Value error, ")


def _allowed(request: Request) -> list[str]:
    """Every method of this path; Starlette names those of the first route with it only."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] != Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)


def _of_http(request: Request, error: HTTPException) -> LongreadError:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound("There is nothing at this path.")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowed(f"This path does not take {request.method}.")
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLarge(str(error.detail))
    if error.status_code == HTTPStatus.REQUEST_TIMEOUT:
        return RequestStalled(str(error.detail))
    return InvalidRequest(str(error.detail))
