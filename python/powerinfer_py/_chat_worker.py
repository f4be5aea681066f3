"""Renders one chat template in a process of its own: a JSON request on stdin, a JSON answer on stdout.

Run as a script by `chat.py`. The answer is [kind, text]: "text", "refused" (the template called raise_exception) or
"error".
"""

import json
import sys
from datetime import datetime
from typing import Any, NoReturn


class Refused(Exception):
    """The template called raise_exception."""


def limit_resources(max_memory_bytes: int, max_seconds: int) -> None:
    """Bounds this process where the system can; the parent's clock holds everywhere."""
    try:
        import resource  # noqa: PLC0415  (POSIX only)
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (max_seconds, max_seconds))


def make_environment() -> Any:
    """The environment that chat templates are written for, with refusals that are loud."""
    from jinja2.exceptions import SecurityError  # noqa: PLC0415  (after the search path is set)
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Environment(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            # The sandbox would hand out an undefined value that prints as nothing.
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is not allowed")

    def raise_exception(message: str) -> NoReturn:
        raise Refused(message)

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def render(request: dict[str, Any]) -> list[str]:
    """The answer to a request."""
    from jinja2.exceptions import TemplateError  # noqa: PLC0415

    limit = request["max_output_chars"]
    parts: list[str] = []
    n_chars = 0
    try:
        template = make_environment().from_string(request["template"])
        for part in template.generate(**request["variables"]):
            n_chars += len(part)
            if n_chars > limit:
                return ["error", f"it writes more than {limit} characters"]
            parts.append(part)
    except Refused as refusal:
        return ["refused", str(refusal)]
    except MemoryError:
        return ["error", "it needs more memory than it may have"]
    except RecursionError:
        return ["error", "it calls itself without end"]
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        return ["error", f"{type(error).__name__}{f' in line {line}' if line else ''}: {error}"]
    except Exception as error:  # whatever a stranger's program does, it is its failure, not ours
        return ["error", f"{type(error).__name__}: {error}"]
    return ["text", "".join(parts)]


def main() -> None:
    """Reads the request, answers, leaves."""
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["path"]
    make_environment()  # imported before memory is bounded
    limit_resources(request["max_memory_bytes"], request["max_seconds"])
    sys.stdout.buffer.write(json.dumps(render(request)).encode())


if __name__ == "__main__":
    main()
