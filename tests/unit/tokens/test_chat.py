from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest

from service.errors import SettingsError
from service.tokens.chat import ChatLayout

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- if strftime_now is defined %}{%- set date = strftime_now('%d') %}{%- else %}{%- set date = '26 Jul' %}"
    "{%- endif %}{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- endif %}{{- 'SYS ' + date + ' ' + system + '<eot>' }}"
    "{%- for message in messages %}{{- '<' + message.role + '>\n\n' + message.content | trim + '<eot>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<assistant>\n\n' }}{%- endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</' + m.role + '>' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SYSTEM = "Answer from the document."


def folder(path: Path, template: str, **tokens: object) -> Path:
    (path / "chat_template.jinja").write_text(template)
    (path / "tokenizer_config.json").write_text(json.dumps(tokens))
    return path


def render(template: str, messages: list[dict[str, str]], **names: str) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **names)


@pytest.mark.parametrize(("template", "names"), [(CHATML, {}), (LLAMA3, {"bos_token": "<bos>"})])
def test_the_pieces_joined_are_the_template(tmp_path: Path, template: str, names: dict[str, str]):
    layout = ChatLayout.derive(folder(tmp_path, template, **names), SYSTEM)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "DOC Q1"}]
    assert layout.head + "DOC Q1" + layout.to_assistant == render(template, messages, **names)
    messages += [{"role": "assistant", "content": "A1"}, {"role": "user", "content": "Q2"}]
    joined = layout.head + "DOC Q1" + layout.to_assistant + "A1" + layout.to_user + "Q2" + layout.to_assistant
    assert joined == render(template, messages, **names)


def test_special_tokens_may_be_objects(tmp_path: Path):
    assert ChatLayout.derive(folder(tmp_path, LLAMA3, bos_token={"content": "<bos>"}), SYSTEM).head.startswith(
        "<bos>SYS"
    )


def test_the_date_never_enters_a_prefix(tmp_path: Path):
    assert "26 Jul" in ChatLayout.derive(folder(tmp_path, LLAMA3, bos_token=""), SYSTEM).head


def test_without_a_system_role_the_system_text_opens_the_first_turn(tmp_path: Path):
    layout = ChatLayout.derive(folder(tmp_path, NO_SYSTEM), SYSTEM)
    assert layout == ChatLayout(
        head=f"<user>{SYSTEM}\n\n", to_assistant="</user><assistant>", to_user="</assistant><user>"
    )


def test_a_template_that_drops_the_system_text_counts_as_one_without_the_role(tmp_path: Path):
    template = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    assert ChatLayout.derive(folder(tmp_path, template), SYSTEM).head == f"<user>{SYSTEM}\n\n"


def test_the_template_may_lie_in_the_tokenizer_config(tmp_path: Path):
    templates = [{"name": "tool_use", "template": "{{ 1 }}"}, {"name": "default", "template": CHATML}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert ChatLayout.derive(tmp_path, SYSTEM).to_user == "<|im_end|>\n<|im_start|>user\n"


def test_training_marks_write_nothing(tmp_path: Path):
    template = CHATML.replace("{{ '<|im_start|>' +", "{% generation %}{{ '<|im_start|>' +", 1).replace(
        "{% endfor %}", "{% endgeneration %}{% endfor %}", 1
    )
    assert ChatLayout.derive(folder(tmp_path, template), SYSTEM) == ChatLayout.derive(folder(tmp_path, CHATML), SYSTEM)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "written 2 times"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}assistant",
            "beginning changes",
        ),
        (CHATML.replace("assistant\n", "assistant\n<think>\n"), "opens differently"),
        ("{{ messages[-1].content }}", "written 0 times"),
        ("{{ messages[7].content.x }}", "no element 7"),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", "TypeError"),
        ("{% if %}", "not a valid Jinja template"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_is_no_concatenation_is_refused_in_one_line(tmp_path: Path, template: str, reason: str):
    with pytest.raises(SettingsError, match=reason) as error:
        ChatLayout.derive(folder(tmp_path, template), SYSTEM)
    assert "\n" not in error.value.detail


def test_a_model_without_a_template_is_refused(tmp_path: Path):
    with pytest.raises(SettingsError, match="no chat template"):
        ChatLayout.derive(tmp_path, SYSTEM)
