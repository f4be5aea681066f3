"""Text generation: greedy loops, stops, limits, interruption."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import powerinfer_py as pi

PROMPT = "Once upon a time"


def greedy(model: pi.Model, **options: object) -> list[pi.Piece]:
    with pi.Context(model) as context:
        return list(context.generate(PROMPT, temperature=0, **options))  # type: ignore[arg-type]


def text_of(pieces: list[pi.Piece]) -> str:
    return "".join(map(str, pieces))


def test_greedy_equals_a_loop_of_eval(bundled: pi.Model) -> None:
    pieces = greedy(bundled, max_tokens=40, ignore_eos=True)
    with pi.Context(bundled) as context:
        logits = context.eval(bundled.tokenize(PROMPT))
        for piece in pieces:
            allowed = logits.copy()
            allowed[bundled.tokenizer.end_of_generation] = -np.inf
            assert piece.token == int(allowed.argmax())
            shifted = logits.astype(np.float64) - logits.max()
            assert piece.logprob == pytest.approx(shifted[piece.token] - np.log(np.exp(shifted).sum()), abs=1e-5)
            logits = context.eval([piece.token])
    tokens = [piece.token for piece in pieces]
    assert PROMPT + text_of(pieces) == bundled.detokenize(bundled.tokenize(PROMPT) + tokens)
    assert [piece.finish_reason for piece in pieces] == [None] * 39 + ["length"]


def test_seeds(bundled: pi.Model) -> None:
    def sample(seed: int) -> str:
        with pi.Context(bundled) as context:
            return text_of(list(context.generate(PROMPT, max_tokens=30, seed=seed)))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_stop_strings_end_before_the_text_they_name(bundled: pi.Model, length: int) -> None:
    full = text_of(greedy(bundled, max_tokens=60, ignore_eos=True))
    for begin in range(3, 40, 6):
        stop = full[begin : begin + length]
        pieces = greedy(bundled, max_tokens=60, ignore_eos=True, stop=["never in it", stop])
        assert text_of(pieces) == full[: full.index(stop)]
        assert pieces[-1].finish_reason == "stop"
        assert all(piece.finish_reason is None for piece in pieces[:-1])
    almost = greedy(bundled, max_tokens=60, ignore_eos=True, stop=full[10:20] + "\0")
    assert text_of(almost) == full


def test_end_of_generation(bundled: pi.Model) -> None:
    eos = bundled.tokenizer.eos
    pieces = greedy(bundled, max_tokens=20, logit_bias={eos: 1e6})
    assert [(piece.token, piece.text, piece.finish_reason) for piece in pieces] == [(eos, "", "stop")]
    ignoring = greedy(bundled, max_tokens=20, logit_bias={eos: 1e6}, ignore_eos=True)
    assert len(ignoring) == 20
    assert eos not in [piece.token for piece in ignoring]


def test_limits(model: pi.Model) -> None:
    with pi.Context(model, n_ctx=12) as context:
        pieces = list(context.generate([1, 300, 301], ignore_eos=True, seed=1))
        # Nine tokens fill the context; the tenth is drawn from the last one's logits and not evaluated any more.
        assert len(pieces) == 10
        assert context.n_past == 12
        assert pieces[-1].finish_reason == "length"
        with pytest.raises(pi.StateError, match="full"):
            list(context.generate([1]))
        context.reset()
        nothing = list(context.generate([1, 300], max_tokens=0))
        assert [(piece.text, piece.token, piece.finish_reason) for piece in nothing] == [("", -1, "length")]
        assert context.n_past == 2


def test_continuing_a_text(bundled: pi.Model) -> None:
    whole = [piece.token for piece in greedy(bundled, max_tokens=12, ignore_eos=True)]
    with pi.Context(bundled) as context:
        first = [p.token for p in context.generate(PROMPT, max_tokens=6, temperature=0, ignore_eos=True)]
        assert context.n_past == len(bundled.tokenize(PROMPT)) + 5
        second = [p.token for p in context.generate(first[-1:], max_tokens=6, temperature=0, ignore_eos=True)]
        assert first + second == whole
        # A text prompt in a filled context gets no BOS.
        before = context.n_past
        list(context.generate(" and", max_tokens=0))
        assert context.n_past == before + len(bundled.tokenize(" and", add_bos=False))


def test_a_sampler_goes_on(model: pi.Model) -> None:
    sampler = pi.Sampler(seed=4, repeat_penalty=1.3)
    copy = sampler.clone()
    with pi.Context(model, n_ctx=64) as context:
        first = [piece.token for piece in context.generate([1, 2], max_tokens=8, sampler=sampler)]
        context.reset()
        assert first == [piece.token for piece in context.generate([1, 2], max_tokens=8, sampler=copy)]
        context.reset()
        again = [piece.token for piece in context.generate([1, 2], max_tokens=8, sampler=sampler)]
        assert again != first
        with pytest.raises(pi.InvalidArgument, match="not both"):
            context.generate([1], sampler=sampler, top_k=3)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([1], {"max_tokens": -1}),
        ([1], {"stop": [""]}),
        ([1], {"temperature": float("nan")}),
        ([2**40], {}),
        ([512], {}),
        ([1], {"logit_bias": {512: 1.0}}),
    ],
)
def test_bad_arguments_are_refused_at_once(model: pi.Model, prompt: list[int], options: dict[str, object]) -> None:
    with pi.Context(model, n_ctx=16) as context:
        with pytest.raises(pi.InvalidArgument):
            context.generate(prompt, **options)  # type: ignore[arg-type]
        assert context.n_past == 0


def test_a_bad_bias_names_the_token(model: pi.Model) -> None:
    with pi.Context(model, n_ctx=16) as context, pytest.raises(pi.InvalidArgument, match="9999; expected 0 to 511"):
        context.generate([1], logit_bias={9999: 1.0})


def test_a_sampler_error_is_told_again(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=16)
    forbidding = pi.Sampler(logit_bias={token: float("-inf") for token in range(model.n_vocab)})
    generator = pi._core.Generator(context._handle, forbidding._handle, [1, 2], max_tokens=3)
    for _ in range(3):
        with pytest.raises(pi.InvalidArgument, match="no token is left"):
            next(generator)
        assert context.n_past == 2
    context.eval([3])
    with pytest.raises(pi.StateError, match="meanwhile"):
        next(generator)


def test_using_the_context_meanwhile_is_told(model: pi.Model) -> None:
    with pi.Context(model, n_ctx=32) as context:
        pieces = iter(context.generate([1, 2], seed=1, ignore_eos=True))
        next(pieces)
        context.eval([5])
        with pytest.raises(pi.StateError, match="meanwhile"):
            next(pieces)
            next(pieces)


def test_cancelling_and_going_on(model: pi.Model) -> None:
    tokens = [1] * 100
    with pi.Context(model, n_ctx=256, n_batch=8, n_threads=1) as context:
        expected = [piece.token for piece in context.generate(tokens, max_tokens=5, temperature=0)]
        context.reset()
        pieces = iter(context.generate(tokens, max_tokens=5, temperature=0))
        context.cancel()
        with pytest.raises(pi.CancelledError):
            next(pieces)
    # A generator expression ends with its first error; the C++ generator goes on, see its contract.
    core_context = pi.Context(model, n_ctx=256, n_batch=8, n_threads=1)
    generator = pi._core.Generator(core_context._handle, pi.Sampler(temperature=0)._handle, tokens, max_tokens=5)
    core_context.cancel()
    with pytest.raises(pi.CancelledError):
        next(generator)
    assert [token for _, token, _, _ in generator] == expected


def test_ctrl_c_while_the_prompt_is_evaluated(model: pi.Model) -> None:
    context = pi.Context(model, n_ctx=2048, n_batch=8)
    context.set_tap("residual", lambda *_: time.sleep(0.002))
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(iter(context.generate([1] * 2000)))
    assert time.monotonic() - start < 0.8
    assert 0 < context.n_past < 2000
