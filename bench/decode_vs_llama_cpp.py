"""Decode speed of one model: this engine against llama.cpp (through llama-cpp-python), in interleaved rounds.

    python bench/decode_vs_llama_cpp.py MODEL.gguf --threads 2 --rounds 5 --tokens 128 [--peer-python PYTHON]

Each contender runs in a fresh process per round; loading is excluded; both decode the same random token ids, fed one by
one after a prompt of 16. Prints each round, medians and the ratio with its spread. `--peer-python` names an
interpreter whose llama-cpp-python was built otherwise (e.g. for AVX2 only).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Annotated

import typer

PROMPT = 16


def token_ids(n_vocab: int, n: int) -> list[int]:
    """The same pseudo-random ids for every contender."""
    state, ids = 12345, []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(state // 8 % n_vocab)
    return ids


def run_ours(model_path: str, threads: int, n_tokens: int) -> float:
    """Tokens per second of this engine."""
    import powerinfer_py  # noqa: PLC0415

    with (
        powerinfer_py.Model(model_path, n_threads=threads) as model,
        powerinfer_py.Context(model, n_ctx=1024) as context,
    ):
        ids = token_ids(model.n_vocab, PROMPT + n_tokens)
        context.eval(ids[:PROMPT])
        start = time.perf_counter()
        for token in ids[PROMPT:]:
            context.eval([token])
        return n_tokens / (time.perf_counter() - start)


def run_peer(model_path: str, threads: int, n_tokens: int) -> float:
    """Tokens per second of llama.cpp."""
    import llama_cpp  # noqa: PLC0415

    model = llama_cpp.Llama(model_path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
    ids = token_ids(model.n_vocab(), PROMPT + n_tokens)
    model.eval(ids[:PROMPT])
    start = time.perf_counter()
    for token in ids[PROMPT:]:
        model.eval([token])
    return n_tokens / (time.perf_counter() - start)


def measure(python: str, role: str, model: str, threads: int, tokens: int) -> float:
    """One contender in a process of its own."""
    command = [python, __file__, model, "--threads", str(threads), "--tokens", str(tokens), "--role", role]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(
    model: str,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    tokens: Annotated[int, typer.Option(min=1, max=900)] = 128,
    peer_python: Annotated[str, typer.Option(help="interpreter that has llama-cpp-python")] = sys.executable,
    role: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Interleaves both engines and prints the ratio."""
    if role:
        print((run_ours if role == "ours" else run_peer)(model, threads, tokens))
        return
    ours, peers = [], []
    for number in range(rounds):
        ours.append(measure(sys.executable, "ours", model, threads, tokens))
        peers.append(measure(peer_python, "peer", model, threads, tokens))
        print(
            f"round {number + 1}: ours {ours[-1]:.1f}, llama.cpp {peers[-1]:.1f} tokens/s, {ours[-1] / peers[-1]:.2f}x"
        )
    ratios = [a / b for a, b in zip(ours, peers, strict=True)]
    print(
        f"medians: ours {statistics.median(ours):.1f}, llama.cpp {statistics.median(peers):.1f} tokens/s; "
        f"ratio {statistics.median(ratios):.2f}x (from {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    typer.run(main)
