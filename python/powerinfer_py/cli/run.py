"""`powerinfer run`: writes text. The text alone goes to stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from powerinfer_py import Context, InvalidArgument, Model, Piece, Stats
from powerinfer_py.cli.common import (
    ActivationOption,
    BatchOption,
    CtxOption,
    KvTypeName,
    KvTypeOption,
    ModelOption,
    SparsityName,
    SparsityOption,
    ThreadsBatchOption,
    ThreadsOption,
    ThresholdOption,
    UsageProblem,
    WeightsName,
    WeightsOption,
    context_size,
    describe,
    load_model,
    read_text_file,
    thread_count,
    warn,
)


def run(
    model: ModelOption = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="Text to go on from.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file; - is stdin."),
    ] = None,
    n_predict: Annotated[
        int,
        typer.Option("-n", "--n-predict", "--predict", metavar="N", help="Tokens to write; -1: until the end."),
    ] = -1,
    n_ctx: CtxOption = None,
    n_batch: BatchOption = 512,
    n_threads: ThreadsOption = None,
    n_threads_batch: ThreadsBatchOption = None,
    seed: Annotated[int, typer.Option("-s", "--seed", metavar="N", help="-1: a random one.")] = -1,
    temperature: Annotated[float, typer.Option("--temp", "--temperature", metavar="X", help="0: greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", help="0: off.")] = 40,
    top_p: Annotated[float, typer.Option("--top-p", metavar="X", help="1: off.")] = 0.95,
    min_p: Annotated[float, typer.Option("--min-p", metavar="X", help="0: off.")] = 0.05,
    repeat_penalty: Annotated[float, typer.Option("--repeat-penalty", metavar="X", help="1: off.")] = 1.0,
    repeat_last_n: Annotated[
        int, typer.Option("--repeat-last-n", metavar="N", help="Tokens that the penalties look at; -1: all.")
    ] = 64,
    presence_penalty: Annotated[float, typer.Option("--presence-penalty", metavar="X", help="0: off.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option("--frequency-penalty", metavar="X", help="0: off.")] = 0.0,
    activation: ActivationOption = None,
    sparsity: SparsityOption = SparsityName.auto,
    threshold: ThresholdOption = None,
    kv_type: KvTypeOption = KvTypeName.f16,
    weights: WeightsOption = WeightsName.auto,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Never end before N tokens.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Speed, density and memory, on stderr.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a question to a chat model.")] = False,
    system_prompt: Annotated[
        str | None,
        typer.Option("-sys", "--system-prompt", metavar="TEXT", help="With --chat: how the model shall behave."),
    ] = None,
    no_display_prompt: Annotated[
        bool, typer.Option("--no-display-prompt", help="Write the continuation only, not the prompt before it.")
    ] = False,
) -> None:
    """Write text after a prompt."""
    text = _prompt_text(prompt, file)
    if system_prompt is not None and not chat:
        raise UsageProblem("-sys needs --chat")
    if n_predict < -1:
        raise UsageProblem(f"-n {n_predict}: expected a number of tokens, or -1")

    with (
        load_model(model, sparsity=sparsity, threshold=threshold, activation=activation, weights=weights) as loaded,
        Context(
            loaded,
            n_ctx=context_size(loaded, n_ctx),
            n_batch=n_batch,
            kv_type=kv_type.value,
            n_threads=thread_count(n_threads),
            n_threads_batch=thread_count(n_threads_batch),
        ) as context,
    ):
        warn(describe(loaded, context))
        tokens = _prompt_tokens(loaded, text, system_prompt, chat=chat)
        if len(tokens) > context.n_ctx:
            raise InvalidArgument(
                f"the context would be full: the prompt has {len(tokens)} tokens, the context {context.n_ctx}; "
                "raise -c or shorten the prompt"
            )
        pieces = context.generate(
            tokens,
            max_tokens=None if n_predict < 0 else n_predict,
            ignore_eos=ignore_eos,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            repeat_last_n=repeat_last_n,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        )
        n_written = _write_pieces(pieces, before="" if chat or no_display_prompt else text)
        if context.n_past >= context.n_ctx and n_written != n_predict:
            warn(f"note: the context of {context.n_ctx} tokens is full; choose a larger one with -c")
        if stats:
            print_stats(context.stats)


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if prompt is not None and file is not None:
        raise UsageProblem("give the prompt with -p or with -f, not with both")
    if prompt is not None:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the prompt is not UTF-8; check the terminal's encoding, or use -f") from None
        return prompt
    if file is None:
        raise UsageProblem("there is no prompt; give one with -p TEXT or -f FILE")
    # Editors end a file with a newline that is not meant as part of the prompt.
    return read_text_file(file).removesuffix("\n")


def _prompt_tokens(model: Model, text: str, system_prompt: str | None, *, chat: bool) -> list[int]:
    if not chat:
        return model.tokenize(text)
    messages = [{"role": "user", "content": text}]
    if system_prompt is not None:
        messages.insert(0, {"role": "system", "content": system_prompt})
    return model.tokenize_chat(messages)


def _write_pieces(pieces: Iterable[Piece], *, before: str) -> int:
    """Writes the text as it comes, `before` as soon as the prompt has been evaluated; returns the pieces' number."""
    n = 0
    try:
        for piece in pieces:
            sys.stdout.write(piece.text if n else before + piece.text)
            sys.stdout.flush()
            n += 1
    finally:
        if n:
            print(flush=True)
    return n


def print_stats(stats: Stats) -> None:
    """Human-readable counters on stderr."""

    def line(name: str, text: str) -> None:
        print(f"  {name:<12}{text}", file=sys.stderr)

    def rate(n: int, value: float | None) -> str:
        return f"{n} tokens" + ("" if value is None else f", {value:.1f} tokens/s")

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    line("prompt", rate(stats["n_prompt_tokens"], stats["prompt_tokens_per_second"]))
    line("generation", rate(stats["n_generated_tokens"], stats["generate_tokens_per_second"]))
    for name, mean, layers in (
        ("density", stats["mean_density"], stats["density"]),
        ("predicted", stats["mean_predicted_density"], stats["predicted_density"]),
    ):
        if mean is not None:
            line(name, f"{share(mean)} % (by layer: {' '.join(share(value) for value in layers)})")
    if stats["weight_bytes_per_token"] is not None:
        line("weights", f"{stats['weight_bytes_per_token'] / 1e6:.2f} MB touched per generated token")
    line("memory", f"{stats['kv_bytes'] / 1e6:.1f} MB KV cache, {stats['scratch_bytes'] / 1e6:.1f} MB scratch")
    line("threads", f"{stats['n_threads']} ({stats['n_threads_batch']} for prompts), {stats['isa']}, {stats['mode']}")
