"""A context: the state of one or several sequences over a model, their evaluation, and text generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, SupportsIndex, TypedDict

import numpy as np
import numpy.typing as npt

from powerinfer_py import _core
from powerinfer_py._arguments import count, optional_count, thresholds
from powerinfer_py._core import TapSink
from powerinfer_py.model import Model, Sparsity
from powerinfer_py.sampler import Sampler

TapPoint = Literal["layer_input", "attn_input", "attn_output", "residual", "ffn_input", "gate", "h", "ffn_output"]
TapCallback = Callable[[int, int, npt.NDArray[np.float32]], None]
MaskCallback = Callable[[int, int, int, int, int], "npt.NDArray[np.bool_] | None"]


@dataclass(frozen=True)
class Piece:
    """What one generated token added to the text."""

    text: str
    """Whole characters that became certain; may be empty while a character or a stop string is undecided."""
    token: int
    """Its id; -1 in the piece of a generation of no tokens."""
    logprob: float
    """Log of its probability under the unmodified logits."""
    finish_reason: Literal["stop", "length"] | None
    """"stop": end token or stop string; "length": max_tokens or a full context; None: more may follow."""

    def __str__(self) -> str:
        """The text."""
        return self.text


class Stats(TypedDict):
    """Counters of a context since it was made or `reset_stats()`.

    Passes of more than one token are "prompt", passes of a single token "generate".
    """

    n_prompt_tokens: int
    prompt_seconds: float
    prompt_tokens_per_second: float | None
    """None before the first such pass; likewise below."""
    n_generated_tokens: int
    generate_seconds: float
    generate_tokens_per_second: float | None
    density: list[float | None]
    """[n_layers] share of neurons with h != 0; None where nothing ran."""
    predicted_density: list[float | None]
    """[n_layers] share of neurons predicted active; None where no predictor ran."""
    mean_density: float | None
    """Mean of `density` over the layers that ran."""
    mean_predicted_density: float | None
    weight_bytes_per_token: float | None
    """Mean bytes of weights touched by a single-token pass."""
    n_threads: int
    n_threads_batch: int
    isa: str
    """Kernels in use: "scalar", "avx2", ..."""
    mode: str
    """"dense", "exact" or "predictor"."""
    kv_bytes: int
    scratch_bytes: int
    workers_seen: int
    """Bit i: worker i (0 = the caller) has computed something."""


@dataclass(frozen=True)
class LayerAudit:
    """How the predictor of a layer compared with the truth, counted over (token, neuron) pairs."""

    n_tokens: int
    n_active: int
    """Neurons with h != 0 when all are computed."""
    n_predicted: int
    n_hit: int
    """Both active and predicted."""

    @property
    def recall(self) -> float | None:
        """Share of the active neurons that were predicted; None: none was active."""
        return self.n_hit / self.n_active if self.n_active else None

    @property
    def precision(self) -> float | None:
        """Share of the predicted neurons that were active; None: none was predicted."""
        return self.n_hit / self.n_predicted if self.n_predicted else None


class Context:
    """State of sequences over a model. One thread at a time; a second one gets a StateError. `cancel` is free.

    Args:
        model: the weights; shared, and kept alive.
        n_ctx: positions per sequence; None: the trained length, at most 4096.
        n_seqs: sequences held at once (`forward`); `eval` and `generate` use sequence 0.
        n_batch: tokens computed per pass of a prompt.
        kv_type: type of the KV cache, "f16" or "f32".
        sparsity, threshold: None: the model's; see `Model`.
        n_threads: threads of single-token passes; None: the model's.
        n_threads_batch: threads of larger passes; None: n_threads.
        audit: compare the predictor with the neurons that are truly active, see `audit`. Every neuron is computed; the
            results stay those of the mode.

    Raises:
        InvalidArgument, UnsupportedError: an option that makes no sense, a mode the model cannot do, or an audit of a
            model without predictors.
        OutOfMemoryError: cache and scratch do not fit into free memory; nothing was allocated.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: SupportsIndex | None = None,
        n_seqs: SupportsIndex = 1,
        n_batch: SupportsIndex = 512,
        kv_type: Literal["f16", "f32"] = "f16",
        sparsity: Sparsity | None = None,
        threshold: float | Sequence[float] | None = None,
        n_threads: SupportsIndex | None = None,
        n_threads_batch: SupportsIndex | None = None,
        audit: bool = False,
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model: expected a Model, got {type(model).__name__}")
        self._open: _core.Context | None = _core.Context(
            model._handle,
            n_ctx=optional_count("n_ctx", n_ctx),
            n_seqs=count("n_seqs", n_seqs),
            n_batch=count("n_batch", n_batch),
            kv_type=kv_type,
            sparsity=sparsity,
            threshold=thresholds(threshold),
            n_threads=optional_count("n_threads", n_threads),
            n_threads_batch=optional_count("n_threads_batch", n_threads_batch),
            audit=audit,
        )
        self._audits = audit
        self._tokenizer = model.tokenizer if model.has_tokenizer else None
        self._has_predictor = [layer.predictor_kind != "none" for layer in model.layers]

    @property
    def _handle(self) -> _core.Context:
        if self._open is None:
            raise _core.StateError("the context is closed")
        return self._open

    def close(self) -> None:
        """Frees the cache."""
        self._open = None

    def __enter__(self) -> Context:
        """The context itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the context."""
        self.close()

    # Evaluation.

    def eval(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer],
        all_logits: bool = False,
        out: npt.NDArray[np.float32] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Appends tokens to sequence 0 and returns logits, a copy.

        Ctrl-C and `cancel()` end a long prompt; the context then stands at the last finished block of n_batch tokens.

        Args:
            tokens: token ids [n_tokens], at least one.
            all_logits: float32 [n_tokens, n_vocab] instead of the last token's [n_vocab].
            out: a C-contiguous float32 array of that shape to fill and return.

        Raises:
            InvalidArgument: no tokens, or an id out of range.
            StateError: the context would overflow (it is unchanged), or is in use by another thread.
            CancelledError: `cancel()` was called.
        """
        return self._handle.eval(tokens, all_logits, out)

    def forward(self, entries: Sequence[tuple[int, int, int, bool]]) -> npt.NDArray[np.float32]:
        """Evaluates entries (token, position, sequence, wants_output) and returns float32 [n_outputs, n_vocab].

        Positions continue where their sequence stands. Rows are in the order of the entries that want output.
        """
        return self._handle.forward(entries)

    @property
    def n_past(self) -> int:
        """Tokens that sequence 0 holds."""
        return self._handle.n_past()

    def n_past_of(self, sequence: int) -> int:
        """Tokens that a sequence holds."""
        return self._handle.n_past(sequence)

    def truncate(self, n: SupportsIndex, sequence: int = 0) -> None:
        """Forgets everything from position `n` on; 0 <= n <= n_past."""
        self._handle.truncate(count("n", n, minimum=0), sequence)

    def copy_sequence(self, source: int, target: int) -> None:
        """Makes sequence `target` a copy of `source`; full blocks of the cache are shared, not copied."""
        self._handle.copy_sequence(source, target)

    def reset(self) -> None:
        """Empties all sequences."""
        self._handle.reset()

    def cancel(self) -> None:
        """Ends the running (or, if none runs, the next) evaluation with CancelledError. From any thread."""
        self._handle.cancel()

    # Generation.

    def generate(
        self,
        prompt: str | bytes | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        ignore_eos: bool = False,
        special: bool = False,
        sampler: Sampler | None = None,
        seed: SupportsIndex | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repeat_penalty: float | None = None,
        frequency_penalty: float | None = None,
        presence_penalty: float | None = None,
        repeat_last_n: int | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Iterator[Piece]:
        """Appends a prompt to sequence 0 and yields what the model writes after it.

        The last piece has a finish_reason. The context must not be used otherwise meanwhile; afterwards it holds
        the prompt and all tokens but the last one. Arguments are checked at once, the prompt is evaluated with the
        first piece.

        Args:
            prompt: text (tokenized with BOS if the context is empty) or token ids.
            max_tokens: None: until the model ends or the context is full.
            stop: text that ends the generation; never part of the output.
            ignore_eos: tokens that end a generation are never chosen.
            special: read control tokens that are written out in the prompt.
            sampler: a Sampler to go on with; its state advances. Or, for a new one, its options:
            seed, temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty,
                repeat_last_n, logit_bias: see `Sampler`.

        Raises:
            InvalidArgument: an empty prompt or a bad option.
            StateError: the prompt does not fit.
        """
        options = {
            "seed": seed,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repeat_penalty": repeat_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "repeat_last_n": repeat_last_n,
            "logit_bias": logit_bias,
        }
        given = {name: value for name, value in options.items() if value is not None}
        if sampler is not None and not isinstance(sampler, Sampler):
            raise TypeError(f"sampler: expected a Sampler, got {type(sampler).__name__}")
        if sampler is not None and given:
            raise _core.InvalidArgument(
                f"generate: pass either a sampler or its options, not both ({', '.join(given)})"
            )
        chosen = sampler or Sampler(**given)  # type: ignore[arg-type]
        generator = _core.Generator(
            self._handle,
            chosen._handle,
            self._prompt_tokens(prompt, special=special),
            max_tokens=-1 if max_tokens is None else count("max_tokens", max_tokens, minimum=0),
            stop=[stop] if isinstance(stop, str) else list(stop or ()),
            ignore_eos=ignore_eos,
        )
        return (Piece(*piece) for piece in generator)

    def _prompt_tokens(self, prompt: str | bytes | Sequence[int], *, special: bool) -> Sequence[int]:
        if not isinstance(prompt, (str, bytes)):
            return prompt
        if self._tokenizer is None:
            raise _core.UnsupportedError("generate: the model has no tokenizer; give the prompt as token ids")
        return self._tokenizer.encode(prompt, add_special=self.n_past == 0, parse_special=special)

    # What is known about it.

    @property
    def n_ctx(self) -> int:
        """Positions per sequence."""
        return self._handle.n_ctx

    @property
    def n_seqs(self) -> int:
        """Sequences held at once."""
        return self._handle.n_seqs

    @property
    def n_batch(self) -> int:
        """Tokens computed per pass."""
        return self._handle.n_batch

    @property
    def kv_type(self) -> str:
        """ "f16" or "f32"."""
        return self._handle.kv_type

    @property
    def sparsity(self) -> str:
        """The mode in use; never "auto"."""
        return self._handle.sparsity

    @property
    def stats(self) -> Stats:
        """Speed, density and memory so far; see `Stats`. Not while another thread computes."""
        raw = self._handle.stats
        density = _known(raw["density"])
        predicted = _known(raw["predicted_density"])
        return {
            "n_prompt_tokens": raw["n_prompt_tokens"],
            "prompt_seconds": raw["prompt_seconds"],
            "prompt_tokens_per_second": _rate(raw["n_prompt_tokens"], raw["prompt_seconds"]),
            "n_generated_tokens": raw["n_generated_tokens"],
            "generate_seconds": raw["generate_seconds"],
            "generate_tokens_per_second": _rate(raw["n_generated_tokens"], raw["generate_seconds"]),
            "density": density,
            "predicted_density": predicted,
            "mean_density": _mean(density),
            "mean_predicted_density": _mean(predicted),
            "weight_bytes_per_token": raw["weight_bytes_per_token"] or None,
            "n_threads": raw["n_threads"],
            "n_threads_batch": raw["n_threads_batch"],
            "isa": raw["isa"],
            "mode": raw["mode"],
            "kv_bytes": raw["kv_bytes"],
            "scratch_bytes": raw["scratch_bytes"],
            "workers_seen": raw["workers_seen"],
        }

    @property
    def audit(self) -> list[LayerAudit | None]:
        """Recall and precision of every layer's predictor so far [n_layers]; None: the layer has no predictor.

        Counted since the context was made or `reset_stats()`, in whatever mode it runs. Tokens whose mask a callback
        forced are left out.

        Raises:
            StateError: the context was made without audit=True.
        """
        if not self._audits:
            raise _core.StateError("the context does not audit; make it with audit=True")
        audits = self._handle.stats["audit"]
        return [
            LayerAudit(*counts) if has_predictor else None
            for counts, has_predictor in zip(audits, self._has_predictor, strict=True)
        ]

    def reset_stats(self) -> None:
        """Starts the counters of `stats` again."""
        self._handle.reset_stats()

    # Observation.

    def set_tap(self, point: TapPoint, callback: TapCallback | TapSink | None) -> None:
        """Calls `callback(layer, unit, values)` for a named point of every layer; None detaches.

        values is a float32 copy [rows, width]: d_model wide for "layer_input", "attn_input" (what q, k and v are
        made of), "residual", "ffn_input" and "ffn_output", n_heads * head_dim wide for "attn_output" (what the output
        projection reads), d_ff wide for "gate" and "h". A pass may bring its rows in several calls, in order. The
        callback must not use the context. An `ActivationCounter`, `SquareSums` or `RowRecorder` in its place takes
        the rows in without Python.
        """
        self._handle.set_tap(point, callback)

    def set_mask(self, callback: MaskCallback | None) -> None:
        """Lets `callback(layer, unit, token, position, sequence)` decide which neurons are active; None detaches.

        It returns bool [d_ff], or None to leave the decision to the context's mode.
        """
        self._handle.set_mask(callback)


def _known(values: Sequence[float]) -> list[float | None]:
    return [value if value >= 0 else None for value in values]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rate(n: int, seconds: float) -> float | None:
    return n / seconds if n and seconds > 0 else None
