"""Converts a 7b-shaped checkpoint and compares the speed with llama.cpp's own quantizer.

    python bench/convert_7b.py --work FOLDER [--threads 2]

Writes, with random weights, a ReLU llama of the 7b shape as a Hugging Face folder of F16 shards (13.5 GB); converts it
to Q4_0 and, for llama.cpp, to a plain F16 GGUF (13.5 GB), which llama.cpp quantizes to Q4_0. Needs about 35 GB of disk
and llama-cpp-python. Each source is read once just before its own timed run. Prints minutes, MB/s of the F16 weights,
and the peak resident memory (VmHWM, mapped pages included) of the conversion.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import sentencepiece
import typer
from safetensors.numpy import save_file
from tqdm import tqdm

D_MODEL, D_FF, N_LAYERS, N_HEADS, N_VOCAB = 4096, 11008, 32, 32, 32000
LAYERS_PER_SHARD = 4
PEAK_OF = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"


def layer_shapes() -> dict[str, tuple[int, int]]:
    """Matrices of one layer, torch order."""
    attention = {f"self_attn.{name}_proj": (D_MODEL, D_MODEL) for name in "qkvo"}
    return attention | {
        "mlp.gate_proj": (D_FF, D_MODEL),
        "mlp.up_proj": (D_FF, D_MODEL),
        "mlp.down_proj": (D_MODEL, D_FF),
    }


def random_matrix(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Normal values [shape], float16; rows are cut out of a pool, which is faster than drawing all of them."""
    pool = (rng.standard_normal(1 << 22, dtype=np.float32) * 0.02).astype(np.float16)
    starts = rng.integers(0, len(pool) - shape[1], size=shape[0])
    return np.stack([pool[start : start + shape[1]] for start in starts])


def write_checkpoint(folder: Path) -> None:
    """A Hugging Face folder: config, SentencePiece vocabulary, shards and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    shards: list[dict[str, tuple[int, ...]]] = [{"model.embed_tokens.weight": (N_VOCAB, D_MODEL)}]
    for layer in range(N_LAYERS):
        if layer % LAYERS_PER_SHARD == 0:
            shards.append({})
        names = {f"model.layers.{layer}.{name}.weight": shape for name, shape in layer_shapes().items()}
        norms = {
            f"model.layers.{layer}.{name}.weight": (D_MODEL,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
        shards[-1] |= names | norms
    shards[-1] |= {"model.norm.weight": (D_MODEL,), "lm_head.weight": (N_VOCAB, D_MODEL)}
    weight_map = {}
    for number, shapes in enumerate(tqdm(shards, desc="checkpoint", unit="shard"), 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        make = {key: random_matrix(rng, s) if len(s) == 2 else np.ones(s, np.float16) for key, s in shapes.items()}
        save_file(make, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shapes, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_vocabulary(folder)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "relu", "hidden_size": D_MODEL,
        "intermediate_size": D_FF, "num_hidden_layers": N_LAYERS, "num_attention_heads": N_HEADS, "vocab_size": N_VOCAB,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float16",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))  # last: its presence says that the folder is complete


def write_vocabulary(folder: Path) -> None:
    """A small SentencePiece model; the rest of the vocabulary stays unused."""
    words = [f"word{number:05d} and number {number * 7919 % 100003}" for number in range(4000)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=600,
        byte_fallback=True, minloglevel=2,
    )  # fmt: skip


def read_once(paths: list[Path]) -> int:
    """Brings files into the page cache, as far as it holds them; their size."""
    total = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(16 << 20):
                total += len(chunk)
    return total


def run_measured(code: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak resident GB of a Python process."""
    begin = time.monotonic()
    program = f"import sys\n{code}\n{PEAK_OF}"
    done = subprocess.run([sys.executable, "-c", program, *arguments], check=True, stderr=subprocess.PIPE, text=True)
    return time.monotonic() - begin, int(done.stderr.split()[-1]) / 1e6


CONVERT = """
from powerinfer_py.convert import convert
options = {"layout": "plain", "force_plain": True} if sys.argv[3] == "f16" else {}
convert(sys.argv[1], sys.argv[2], outtype=sys.argv[3], n_threads=int(sys.argv[4]), force=True, **options)
"""
LLAMA_CPP = """
import ctypes, llama_cpp
options = llama_cpp.llama_model_quantize_default_params()
options.nthread, options.ftype, options.pure = int(sys.argv[3]), llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True
silent = llama_cpp.llama_log_callback(lambda *_: None)  # must outlive the call
llama_cpp.llama_log_set(silent, ctypes.c_void_p())
assert llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(options)) == 0
"""


def main(
    work: Annotated[Path, typer.Option(help="folder for about 35 GB; what is in it is used again")],
    threads: Annotated[int, typer.Option(help="threads of both quantizers")] = 2,
) -> None:
    """Runs the comparison."""
    checkpoint = work / "hf"
    if not (checkpoint / "config.json").exists():
        write_checkpoint(checkpoint)
    shards = sorted(checkpoint.glob("*.safetensors"))
    size = read_once(shards)
    ours_s, peak = run_measured(CONVERT, str(checkpoint), str(work / "ours-q4_0.gguf"), "q4_0", str(threads))
    print(
        f"machine: {platform.processor() or platform.machine()}, {threads} threads; {size / 1e9:.2f} GB of F16 weights"
    )
    print(f"convert to Q4_0: {ours_s / 60:.2f} minutes, {size / ours_s / 1e6:.0f} MB/s, VmHWM {peak:.2f} GB")
    (work / "ours-q4_0.gguf").unlink()
    plain = work / "plain-f16.gguf"
    if not plain.exists():
        run_measured(CONVERT, str(checkpoint), str(plain), "f16", str(threads))
    size = read_once([plain])
    theirs_s, _ = run_measured(LLAMA_CPP, str(plain), str(work / "theirs-q4_0.gguf"), str(threads))
    (work / "theirs-q4_0.gguf").unlink()
    print(f"llama.cpp from F16 to Q4_0: {theirs_s / 60:.2f} minutes, {size / theirs_s / 1e6:.0f} MB/s")
    print(f"ratio of speeds, ours to llama.cpp's: {theirs_s / ours_s:.2f}")


if __name__ == "__main__":
    typer.run(main)
