"""Chat templates: jinja2 programs that come with a model file, so code from strangers.

They are rendered in a child process, in jinja2's immutable sandbox. The sandbox refuses attributes that lead out of
the data; the process bounds what a sandbox cannot: a template that loops or doubles a string is stopped by the
clock, by the limit on memory or by the limit on output, whatever construct it uses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from powerinfer_py._core import FormatError, InvalidArgument

_WORKER = Path(__file__).with_name("_chat_worker.py")
_MAX_OUTPUT_CHARS = 4_000_000
_MAX_MEMORY_BYTES = 1 << 30


def render_chat_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    timeout_seconds: float = 10.0,
    **variables: Any,
) -> str:
    """Text of a conversation by a jinja2 chat template, as `transformers` renders it.

    Args:
        template: the template's source.
        messages: the conversation, dicts with "role" and "content"; must be expressible in JSON.
        add_generation_prompt: end with the beginning of the assistant's answer.
        timeout_seconds: after this time the template is stopped.
        variables: more variables, e.g. bos_token, eos_token, tools.

    Raises:
        FormatError: the template does not parse, fails, loops, writes too much or reaches for what it must not.
        InvalidArgument: the template refuses the conversation (raise_exception), or it is no JSON.
    """
    values = {**variables, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
    try:
        request = json.dumps(
            {
                "template": template,
                "variables": values,
                "path": sys.path,
                "max_output_chars": _MAX_OUTPUT_CHARS,
                "max_memory_bytes": _MAX_MEMORY_BYTES,
                "max_seconds": max(1, round(timeout_seconds)) + 1,
            }
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"chat: the conversation cannot be written as JSON: {error}") from None
    try:
        # -S and the parent's path: the child finds the same jinja2, and starts without looking around.
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_WORKER)],
            input=request.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FormatError(
            f"chat template: still running after {timeout_seconds:g} s, it was stopped; give the prompt without it"
        ) from None
    try:
        kind, text = json.loads(done.stdout)
    except ValueError:
        raise FormatError(
            "chat template: rendering it ended without an answer, most likely for want of memory; "
            "give the prompt without it"
        ) from None
    if kind == "text":
        return str(text)
    if kind == "refused":
        raise InvalidArgument(f"chat template: it refuses the conversation: {text}")
    raise FormatError(f"chat template: {text}")
