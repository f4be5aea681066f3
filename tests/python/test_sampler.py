"""The facade of the sampler; its arithmetic is tested against a twin in C++."""

from __future__ import annotations

import math

import numpy as np
import pytest

import powerinfer_py as pi

LOGITS = np.array([1.0, 3.0, 2.0, -1.0], np.float32)


def test_greedy_and_logprob() -> None:
    token, logprob = pi.Sampler(temperature=0).apply(LOGITS)
    assert token == 1
    assert math.isclose(logprob, 3 - math.log(np.exp(LOGITS.astype(np.float64)).sum()), rel_tol=1e-6)


def test_any_array_like_is_accepted() -> None:
    sampler = pi.Sampler(temperature=0)
    for logits in ([1, 3, 2], np.array([1, 3, 2]), LOGITS[::2][::-1], LOGITS.astype(np.float64)):
        assert sampler.apply(logits).token == int(np.argmax(logits))


def test_mask() -> None:
    sampler = pi.Sampler(temperature=0)
    assert sampler.apply(LOGITS, [True, False, True, True]).token == 2
    with pytest.raises(pi.InvalidArgument, match="no token is left"):
        sampler.apply(LOGITS, np.zeros(4, bool))
    with pytest.raises(pi.InvalidArgument, match="mask has 3"):
        sampler.apply(LOGITS, [True] * 3)


def test_seed_clone_and_random_seed() -> None:
    logits = np.random.default_rng(0).standard_normal(200)
    first, second = pi.Sampler(seed=7), pi.Sampler(seed=7)
    assert first.seed == 7
    tokens = [first.apply(logits).token for _ in range(20)]
    assert tokens == [second.apply(logits).token for _ in range(20)]
    copy = first.clone()
    assert [first.apply(logits) for _ in range(20)] == [copy.apply(logits) for _ in range(20)]

    random = pi.Sampler(seed=-1)
    again = pi.Sampler(seed=random.seed)
    assert [random.apply(logits) for _ in range(20)] == [again.apply(logits) for _ in range(20)]


def test_accept_feeds_the_penalties() -> None:
    sampler = pi.Sampler(temperature=0, presence_penalty=5.0)
    sampler.accept(1)
    assert sampler.apply(LOGITS).token == 2
    assert pi.Sampler(temperature=0, logit_bias={3: 9.0}).apply(LOGITS).token == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -1.0}, "min_p"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"seed": 2**32}, "seed"),
        ({"seed": -2}, "seed"),
        ({"top_k": 2**40}, "top_k"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
    ],
)
def test_bad_options(options: dict[str, object], named: str) -> None:
    with pytest.raises(pi.InvalidArgument, match=named):
        pi.Sampler(**options)  # type: ignore[arg-type]


def test_bad_input() -> None:
    sampler = pi.Sampler()
    with pytest.raises(pi.InvalidArgument, match="one dimension"):
        sampler.apply(np.zeros((2, 2)))
    with pytest.raises(pi.InvalidArgument, match="no logits"):
        sampler.apply([])
    with pytest.raises(pi.InvalidArgument, match="NaN"):
        sampler.apply([math.nan])
    with pytest.raises(pi.InvalidArgument, match="token"):
        sampler.accept(-1)
