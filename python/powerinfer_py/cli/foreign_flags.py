"""Flags of llama.cpp and of the reference engine that mean something else, or nothing, here.

People bring their command lines along. What is harmless to ignore gets one sentence and the command goes on; what
would change the result gets one sentence and exit code 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from powerinfer_py.cli.common import UsageProblem, warn


class Value(Enum):
    """Whether a flag is followed by a value."""

    NONE = auto()
    ONE = auto()
    SWITCH = auto()
    """Only if the next word is on, off, auto, 0 or 1."""


@dataclass(frozen=True)
class ForeignFlag:
    """One flag: what follows it, and what to say."""

    value: Value
    advice: str
    is_error: bool
    harmless_value: str | None = None
    """A value with which even an error is harmless."""


def _flags(names: str, value: Value, advice: str, *, is_error: bool = False, **more: Any) -> dict[str, ForeignFlag]:
    return {name: ForeignFlag(value, advice, is_error, **more) for name in names.split()}


_CPU_ONLY = "this version computes on the CPU; leave it out"
_FROM_FILE = "taken from the model file; it cannot be overridden"
_SAMPLER = "no such sampler; use --temp, --top-k, --top-p, --min-p or --repeat-penalty"
_ONE_TURN = "there is no interactive mode; use --chat -p TEXT for one answer"
_PLACEMENT = "use taskset or numactl to place the process, and -t for the number of threads"
_OUTPUT = "text goes to stdout and everything else to stderr; redirect what you do not want"
_ESCAPES = "prompts are taken as they are; write a newline as one, or read the prompt from a file with -f"

FOREIGN_FLAGS: dict[str, ForeignFlag] = {
    **_flags("-ngl --n-gpu-layers --gpu-layers -mg --main-gpu -ts --tensor-split -sm --split-mode -dev --device "
             "-ot --override-tensor -ncmoe --n-cpu-moe", Value.ONE, _CPU_ONLY),
    **_flags("-cmoe --cpu-moe -nkvo --no-kv-offload -kvo --kv-offload --no-op-offload --list-devices", Value.NONE,
             _CPU_ONLY),
    **_flags("--vram-budget", Value.ONE, _CPU_ONLY),
    **_flags("--reset-gpu-index --disable-gpu-index", Value.NONE, "there is no GPU index yet; leave it out"),
    **_flags("-fa --flash-attn", Value.SWITCH, "attention always runs in blocks without a score matrix; leave it out"),
    **_flags("--mlock", Value.NONE, "memory is not locked; --weights read loads all weights at the start"),
    **_flags("--no-mmap", Value.NONE, "use --weights read"),
    **_flags("--mmap", Value.NONE, "use --weights mmap"),
    **_flags("-ub --ubatch-size", Value.ONE, "use -b, the tokens computed per pass"),
    **_flags("--numa -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch", Value.ONE,
             _PLACEMENT),
    **_flags("-ctk --cache-type-k -ctv --cache-type-v", Value.ONE, "use --kv-type f16 or --kv-type f32",
             is_error=True, harmless_value="f16"),
    **_flags("-i --interactive -if --interactive-first -ins --instruct -cnv --conversation", Value.NONE, _ONE_TURN,
             is_error=True),
    **_flags("-no-cnv --no-conversation -st --single-turn", Value.NONE, "this is what happens anyway; leave it out"),
    **_flags("-r --reverse-prompt", Value.ONE, "not on the command line; in Python use generate(stop=...)",
             is_error=True),
    **_flags("--in-prefix --in-suffix", Value.ONE, "write it into the prompt; --chat uses the file's own template",
             is_error=True),
    **_flags("-co --color --simple-io --verbose-prompt --log-disable -v --verbose --offline --show-timings",
             Value.NONE, _OUTPUT),
    **_flags("--log-file -lv --verbosity", Value.ONE, _OUTPUT),
    **_flags("--perf --no-perf --timings", Value.NONE, "use --stats for speed and density"),
    **_flags("-e --escape", Value.NONE, _ESCAPES, is_error=True),
    **_flags("--no-escape", Value.NONE, "this is what happens anyway; leave it out"),
    **_flags("--warmup --no-warmup --check-tensors -cb --cont-batching -nocb --no-cont-batching --jinja", Value.NONE,
             "nothing needs it here; leave it out"),
    **_flags("-np --parallel", Value.ONE, "one sequence is written at a time; leave it out"),
    **_flags("--chat-template --chat-template-file", Value.ONE, "--chat uses the template in the model file",
             is_error=True),
    **_flags("--no-jinja", Value.NONE, "--chat renders the file's own template with jinja2", is_error=True),
    **_flags("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
             "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv", Value.ONE, _FROM_FILE,
             is_error=True),
    **_flags("--keep -gan --grp-attn-n -gaw --grp-attn-w", Value.ONE,
             "the context does not shift; choose a larger -c", is_error=True),
    **_flags("--context-shift", Value.NONE, "the context does not shift; choose a larger -c", is_error=True),
    **_flags("--no-context-shift", Value.NONE, "this is what happens anyway; leave it out"),
    **_flags("--typical --tfs --mirostat --mirostat-lr --mirostat-ent --xtc-probability --xtc-threshold --top-nsigma "
             "--dynatemp-range --dynatemp-exp --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n "
             "--dry-sequence-breaker --samplers --sampling-seq --sampler-seq", Value.ONE, _SAMPLER, is_error=True),
    **_flags("-l --logit-bias", Value.ONE, "not on the command line; in Python use Sampler(logit_bias=...)",
             is_error=True),
    **_flags("--grammar --grammar-file -j --json-schema", Value.ONE,
             "the output cannot be constrained on the command line; in Python pass a mask to Sampler.apply",
             is_error=True),
    **_flags("--lora --lora-base --lora-scaled --control-vector", Value.ONE, "adapters are not supported",
             is_error=True),
    **_flags("-md --model-draft --draft --draft-max", Value.ONE, "there is no draft model; leave it out"),
    **_flags("-hf -hfr --hf-repo -hff --hf-file -mu --model-url", Value.ONE,
             "nothing is downloaded; fetch the file and pass it with -m", is_error=True),
    **_flags("--prompt-cache", Value.ONE, "prompts are not cached; leave it out"),
    **_flags("--prompt-cache-all --prompt-cache-ro", Value.NONE, "prompts are not cached; leave it out"),
    **_flags("--ppl-stride", Value.ONE, "perplexity is computed over windows of -c tokens, second half scored",
             is_error=True),
    **_flags("--hellaswag --winogrande --multiple-choice --kl-divergence", Value.NONE,
             "`powerinfer perplexity` computes perplexity only", is_error=True),
}  # fmt: skip

_SWITCH_WORDS = {"on", "off", "auto", "0", "1"}
_NUMBER = re.compile(r"-?\.?\d")


def filter_arguments(command: Any, arguments: list[str]) -> list[str]:
    """`arguments` without foreign flags; a note on stderr for each. Raises UsageProblem where that would not do."""
    subcommand = next((word for word in arguments if not word.startswith("-")), "")
    chosen = getattr(command, "commands", {}).get(subcommand)
    if chosen is None:
        return arguments
    own, with_value = _own_options(chosen.params)
    kept: list[str] = []
    words = _Peekable(arguments)
    for word in words:
        name, has_inline_value, inline = word.partition("=")
        foreign = FOREIGN_FLAGS.get(name)
        if word == "--":
            return [*kept, word, *words]
        if foreign is None or name in own:
            kept.append(word)
            if word in with_value:
                kept.extend(words.take())
            continue
        value = inline if has_inline_value else _value_of(foreign, words)
        if foreign.is_error and (foreign.harmless_value is None or value != foreign.harmless_value):
            raise UsageProblem(f"{name}: {foreign.advice}")
        warn(f"note: {name} is ignored: {foreign.advice}")
    return kept


def _own_options(parameters: Iterable[Any]) -> tuple[set[str], set[str]]:
    options = [p for p in parameters if p.param_type_name == "option"]
    own = {name for p in options for name in [*p.opts, *p.secondary_opts]}
    return own, {name for p in options if not p.is_flag for name in p.opts}


class _Peekable:
    def __init__(self, words: list[str]) -> None:
        self._words, self._next = words, 0

    def __iter__(self) -> _Peekable:
        return self

    def __next__(self) -> str:
        if self._next == len(self._words):
            raise StopIteration
        self._next += 1
        return self._words[self._next - 1]

    def peek(self) -> str | None:
        return self._words[self._next] if self._next < len(self._words) else None

    def take(self) -> list[str]:
        word = self.peek()
        return [] if word is None else [next(self)]


def _value_of(flag: ForeignFlag, words: _Peekable) -> str | None:
    following = words.peek()
    if following is None or flag.value is Value.NONE:
        return None
    if flag.value is Value.SWITCH and following not in _SWITCH_WORDS:
        return None
    # A forgotten value must not swallow the next flag; negative numbers are values.
    if following.startswith("-") and not _NUMBER.match(following):
        return None
    return next(words)
