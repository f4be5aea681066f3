"""Chat templates: the right text from good ones, a sentence from bad ones, and never more than that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers.tiny_model import tiny_model

import powerinfer_py as pi

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi <ü>"}]
CHATML = """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CHATML_TEXT = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <ü><|im_end|>\n"


def test_a_good_template() -> None:
    assert pi.render_chat_template(CHATML, MESSAGES) == CHATML_TEXT + "<|im_start|>assistant\n"
    assert pi.render_chat_template(CHATML, MESSAGES, add_generation_prompt=False) == CHATML_TEXT


def test_what_templates_rely_on() -> None:
    template = "{{ bos_token }}{% for m in messages %}{% break %}{% endfor %}{{ messages[1] | tojson }}"
    assert pi.render_chat_template(template, MESSAGES, bos_token="<s>") == '<s>{"role": "user", "content": "Hi <ü>"}'
    year = time.strftime("%Y")
    assert pi.render_chat_template("{{ strftime_now('%Y') }}", []) == year


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ messages|attr('__class__') }}", "__class__"),
        ("{{ '{0.__class__}'.format(messages) }}", "__class__"),
        ("{{ cycler.__init__.__globals__ }}", "__init__"),
        ("{{ messages.append(1) }}", "append"),
        ("{% include '/etc/passwd' %}", "loader"),
        ("{% for %}", "line 1"),
        ("{{ nothing.at_all }}", "nothing"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ],
)
def test_refused_templates(template: str, named: str) -> None:
    with pytest.raises(pi.FormatError, match=named):
        pi.render_chat_template(template, MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
    ],
)
def test_templates_that_never_end_or_never_fit(template: str) -> None:
    start = time.monotonic()
    with pytest.raises(pi.FormatError):
        pi.render_chat_template(template, MESSAGES, timeout_seconds=2)
    assert time.monotonic() - start < 6


def test_a_template_may_refuse_the_conversation() -> None:
    with pytest.raises(pi.InvalidArgument, match="user first"):
        pi.render_chat_template("{{ raise_exception('user first') }}", MESSAGES)
    with pytest.raises(pi.InvalidArgument, match="JSON"):
        pi.render_chat_template(CHATML, [{"role": object()}])


def test_the_template_of_a_file(tmp_path: Path, plain_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}"
    with pi.Model(tiny_model(tmp_path / "chat.gguf", chat_template=template).path) as model:
        assert model.chat_template == template
        assert model.apply_chat_template([{"role": "user", "content": "time"}]) == "<s>time</s>"
        tokens = model.tokenize_chat([{"role": "user", "content": "time"}])
        assert tokens[0] == model.tokenizer.bos and tokens[-1] == model.tokenizer.eos
        assert tokens.count(model.tokenizer.bos) == 1
    with pi.Model(plain_path) as model:
        assert model.chat_template is None
        with pytest.raises(pi.UnsupportedError, match="no chat template"):
            model.apply_chat_template([])
