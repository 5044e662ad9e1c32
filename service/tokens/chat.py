"""The model's chat template, taken apart once into the constant pieces around document, questions and answers.

A prompt is then plain concatenation of token ids: ``head + document + question + to_assistant``, and after an answer
``to_user + question + to_assistant``. So no template runs for a question, and the prefix's ids never change with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from service.errors import SettingsError
from service.tokens.tokenizer import chat_template

# Words no template mentions, without white space at the ends, because templates trim.
_DOCUMENT, _ANSWER, _QUESTION = "Sentinel0Document", "Sentinel0Answer", "Sentinel0Question"


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """The constant pieces of a conversation, as template text (encode with ``Tokenizer.encode_control``).

    Attributes:
        head: System text and the opening of the first user turn, up to where the document starts.
        to_assistant: Between a user's question and the assistant's answer.
        to_user: Between an assistant's answer and the next user's question.
    """

    head: str
    to_assistant: str
    to_user: str

    @classmethod
    def derive(cls, model_dir: Path, system_text: str) -> ChatLayout:
        """Take apart the chat template of the model in this folder.

        The system text goes into the first user turn, before the document, when the template has no system role.

        Raises:
            SettingsError: The folder has no chat template, or it is not a concatenation of its messages.
        """
        template = chat_template(model_dir)
        if template is None:
            raise SettingsError(
                f"The model in {model_dir} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); serve an instruction-tuned model, or put its template there."
            )
        render = _Renderer(template, _special_names(model_dir))
        try:
            return _take_apart(render, [{"role": "system", "content": system_text}], "", system_text)
        except (jinja2.TemplateError, _Unfit):
            try:
                return _take_apart(render, [], f"{system_text}\n\n", system_text)
            except (jinja2.TemplateError, _Unfit) as error:
                raise SettingsError(
                    f"The chat template of the model in {model_dir} cannot be taken apart into constant pieces: {error}. "
                    "Put a chat_template.jinja that writes each message once, in order, into the model folder."
                ) from error


class _Unfit(Exception):
    """The rendered text is not a concatenation of constant pieces and messages."""


def _take_apart(render: _Renderer, start: list[dict[str, str]], before: str, system_text: str) -> ChatLayout:
    first = {"role": "user", "content": before + _DOCUMENT}
    turns = [first, {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _QUESTION}]
    head, to_assistant = _cut(render([*start, first]), _DOCUMENT)
    again, rest = _cut(render([*start, *turns]), _DOCUMENT)
    middle, rest = _cut(rest, _ANSWER)
    to_user, end = _cut(rest, _QUESTION)
    if system_text.strip() not in head:
        raise _Unfit("the system text is not in it")
    if again != head:
        raise _Unfit("its beginning changes when the conversation goes on")
    if middle != to_assistant or end != to_assistant:
        raise _Unfit("the assistant's turn opens differently in the history and at the end")
    return ChatLayout(head=head, to_assistant=to_assistant, to_user=to_user)


def _cut(text: str, sentinel: str) -> tuple[str, str]:
    parts = text.split(sentinel)
    if len(parts) != 2:
        raise _Unfit(f"a message is written {len(parts) - 1} times instead of once")
    return parts[0], parts[1]


class _Renderer:
    """Renders as transformers does: sandboxed, blocks trimmed, no access to files or clock.

    ``strftime_now`` is left out on purpose: templates that print today's date when they have it would change every prefix
    at midnight.
    """

    def __init__(self, template: str, names: dict[str, str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
            autoescape=False,  # Prompt text, not HTML.
        )
        environment.filters["tojson"] = _tojson
        self._names = names
        try:
            self._template = environment.from_string(template)
        except jinja2.TemplateError as error:
            raise SettingsError(f"The model's chat template is not a valid Jinja template: {error}.") from error

    def __call__(self, messages: list[dict[str, str]]) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, raise_exception=_refuse, **self._names
            )
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise _Unfit(f"it fails with {type(error).__name__}: {error}") from error


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` of training templates: marks the assistant's text, writes nothing."""

    tags = {"generation"}  # noqa: RUF012  # The base class declares it so.

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _special_names(model_dir: Path) -> dict[str, str]:
    """``bos_token`` and the like, which templates write."""
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = model_dir / file
        if not path.is_file():
            continue
        for key, value in json.loads(path.read_text(encoding="utf-8")).items():
            if key.endswith("_token"):
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    names[key] = text
    return names
