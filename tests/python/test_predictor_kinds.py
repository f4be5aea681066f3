"""Every kind of predictor against its definition in double precision.

The definition decides through a forced mask, from what the taps show of the predictor's input; a run in which the
engine's own predictor decides must then give the same bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_model import TinyModel, tiny_model

import powerinfer_py as pi

TOKENS = [1, 300, 17, 80, 311, 5, 260, 99]
SMALL = {"d_model": 64, "d_ff": 192, "n_heads": 4, "n_vocab": 384, "n_ctx": 64}


def rounded(z: np.ndarray) -> np.ndarray:
    """Inputs of rows of block types: int8 in blocks of 32."""
    blocks = z.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    return np.asarray(np.rint(blocks * (np.float32(127) / largest)) * (largest / np.float32(127))).reshape(z.shape)


def scores(tiny: TinyModel, layer: int, kind: str, z: np.ndarray, *, blocks: bool) -> np.ndarray:
    """The format's definition for one input [d_model]: [d_ff]."""
    get = {name.removeprefix(f"blk.{layer}."): values for name, values in tiny.tensors.items()}.get
    bias = get("fc2.bias", np.zeros(tiny.config["d_ff"])).astype(np.float64)
    if kind == "sign":
        words = np.ascontiguousarray(get("ffn_gate_sign.weight"))
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : len(z)]
        return np.where(bits == (z < 0), 1, -1).sum(axis=1) + bias
    hidden = get("fc1.weight").astype(np.float64) @ (rounded(z) if blocks else z)
    if kind == "mlp":
        hidden = np.maximum(hidden, 0)
    if blocks:
        hidden = rounded(hidden.astype(np.float32))
    return get("fc2.weight").astype(np.float64) @ hidden + bias


def run(
    path: Path, *, mask=None, one_by_one: bool = False
) -> tuple[np.ndarray, list[float | None], list[float | None]]:
    """Logits, predicted density and density of the tokens; `mask(layer, inputs)` decides where given."""
    inputs: dict[tuple[str, int], list[np.ndarray]] = {}
    with pi.Model(path) as model, pi.Context(model, kv_type="f32", sparsity="predictor", n_threads=2) as context:
        if mask is not None:
            for point in ("layer_input", "residual", "ffn_input"):
                context.set_tap(
                    point, lambda layer, unit, rows, point=point: inputs.setdefault((point, layer), []).extend(rows)
                )
            context.set_mask(
                lambda layer, unit, token, position, sequence: mask(
                    layer, {point: rows[position] for (point, of), rows in inputs.items() if of == layer}
                )
            )
        if one_by_one:
            logits = np.stack([context.eval([token]) for token in TOKENS])
        else:
            logits = context.eval(TOKENS, all_logits=True)
        return logits, context.stats["predicted_density"], context.stats["density"]


def check(tiny: TinyModel, kinds: list[str], point: str, thresholds: list[float], *, blocks: bool = False) -> None:
    n_predicted = np.zeros(len(kinds))

    def decide(layer: int, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        if kinds[layer] == "none":
            return None
        found = scores(tiny, layer, kinds[layer], inputs[point], blocks=blocks) >= thresholds[layer]
        n_predicted[layer] += found.sum()
        return found

    for one_by_one in (False, True):
        n_predicted[:] = 0
        ours, predicted, _ = run(tiny.path, one_by_one=one_by_one)
        witness, _, _ = run(tiny.path, mask=decide, one_by_one=one_by_one)
        assert np.array_equal(ours, witness)
        shares = n_predicted / (len(TOKENS) * tiny.config["d_ff"])
        for kind, share, stat in zip(kinds, shares, predicted, strict=True):
            assert stat == (None if kind == "none" else pytest.approx(share))
            assert kind == "none" or 0.02 < share < 0.98


@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
@pytest.mark.parametrize("kind", ["mlp", "svd", "sign"])
@pytest.mark.parametrize("arch", ["llama", "bamboo", "falcon", "opt"])
def test_each_kind_on_each_architecture(arch: str, kind: str, dtype: str, tmp_path: Path) -> None:
    thresholds = [3.0, -2.0] if kind == "sign" else [0.3, -0.2]
    tiny = tiny_model(
        tmp_path / "m.gguf", arch, dtype=dtype, activation="drelu" if arch == "bamboo" else "relu", predictor_rank=32,
        predictor_kind=kind, predictor_input="ffn_input", layer_thresholds=thresholds, fc2_bias=True, **SMALL,
    )  # fmt: skip
    check(tiny, [kind] * 2, "ffn_input", thresholds, blocks=dtype != "F32")


@pytest.mark.parametrize("point", ["residual", "layer_input", "ffn_input"])
@pytest.mark.parametrize("kind", ["mlp", "svd"])
@pytest.mark.parametrize("arch", ["llama", "falcon", "opt"])
def test_inputs(arch: str, kind: str, point: str, tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", arch, activation="relu", predictor_rank=32, predictor_kind=kind, predictor_input=point,
        threshold=0.1, **SMALL,
    )  # fmt: skip
    check(tiny, [kind] * 2, point, [np.float32(0.1)] * 2)


@pytest.mark.parametrize(("kind", "point"), [("svd", "ffn_input"), ("sign", "ffn_input"), ("mlp", "residual")])
def test_input_of_files_that_do_not_say(kind: str, point: str, tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=32, predictor_kind=kind, threshold=0.0, **SMALL
    )
    check(tiny, [kind] * 2, point, [0.0, 0.0])


@pytest.mark.parametrize("down", ["transposed", "plain"])
def test_another_kind_in_each_layer(down: str, tmp_path: Path) -> None:
    kinds = ["sign", "none", "svd", "mlp"]
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=[1, 0, 32, 64], predictor_kind=kinds, n_layers=4,
        predictor_input="ffn_input", layer_thresholds=[0, 9, 0.5, 0.25], down=down, **SMALL,
    )  # fmt: skip
    with pi.Model(tiny.path) as model:
        assert [layer.predictor_kind for layer in model.layers] == kinds
        assert [layer.predictor_rank for layer in model.layers] == [0, 0, 32, 64]
        assert [layer.predictor_threshold for layer in model.layers] == [0, 0, 0.5, 0.25]
    check(tiny, kinds, "ffn_input", [0, 9, 0.5, 0.25])


def test_a_width_that_is_no_multiple_of_32(tmp_path: Path) -> None:
    sizes = SMALL | {"d_model": 72, "d_ff": 100}
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=1, predictor_kind="sign", threshold=2.0, **sizes
    )
    check(tiny, ["sign"] * 2, "ffn_input", [2.0, 2.0])


def test_one_kind_for_a_file_allows_layers_without(tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=[32, 0], predictor_kind="svd", threshold=0.0, **SMALL
    )
    check(tiny, ["svd", "none"], "ffn_input", [0.0, 0.0])


BAD = {
    "sign tensor of another width": (
        {"blk.0.ffn_gate_sign.weight": (np.zeros((192, 2), np.int32), "I32")},
        "expected I32",
    ),
    "sign tensor of other neurons": (
        {"blk.0.ffn_gate_sign.weight": (np.zeros((64, 3), np.int32), "I32")},
        "expected I32",
    ),
    "sign tensor of floats": ({"blk.0.ffn_gate_sign.weight": (np.zeros((192, 3), np.float32), "F32")}, "expected I32"),
    "pad bits": ({"blk.1.ffn_gate_sign.weight": (np.full((192, 3), 1 << 30, np.int32), "I32")}, "bits past the 72"),
    "bias of another length": ({"blk.0.fc2.bias": (np.zeros(64, np.float32), "F32")}, r"fc2\.bias"),
}


@pytest.mark.parametrize("case", BAD)
def test_broken_sign_predictors(case: str, tmp_path: Path) -> None:
    tensors, message = BAD[case]
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=1, predictor_kind="sign", tensors=tensors,
        **(SMALL | {"d_model": 72}),
    )  # fmt: skip
    with pytest.raises(pi.FormatError, match=message):
        pi.Model(tiny.path)


def test_sign_predictors_read_the_ffn_input(tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", activation="relu", predictor_rank=1, predictor_kind="sign", predictor_input="residual",
        **SMALL,
    )  # fmt: skip
    with pytest.raises(pi.FormatError, match=r"'sign', which reads 'ffn_input'.*'residual'"):
        pi.Model(tiny.path)


# Audits.


def truth_of(
    path: Path, thresholds: list[float], point: str, kinds: list[str], tiny: TinyModel
) -> list[tuple[int, ...]]:
    """(active, predicted, both) of every layer in exact mode, by the definition."""
    z: list[list[np.ndarray]] = [[] for _ in kinds]
    h: list[list[np.ndarray]] = [[] for _ in kinds]
    with pi.Model(path) as model, pi.Context(model, kv_type="f32", sparsity="exact") as context:
        context.set_tap(point, lambda layer, unit, rows: z[layer].extend(rows))
        context.set_tap("h", lambda layer, unit, rows: h[layer].extend(rows))
        context.eval(TOKENS)
    counts = []
    for layer, kind in enumerate(kinds):
        active = np.stack(h[layer]) != 0
        found = np.stack([scores(tiny, layer, kind, row, blocks=False) for row in z[layer]]) >= thresholds[layer]
        counts.append((int(active.sum()), int(found.sum()), int((active & found).sum())))
    return counts


@pytest.mark.parametrize("kind", ["mlp", "svd", "sign"])
@pytest.mark.parametrize("arch", ["llama", "bamboo", "falcon", "opt"])
def test_audit(arch: str, kind: str, tmp_path: Path) -> None:
    tiny = tiny_model(
        tmp_path / "m.gguf", arch, activation="drelu" if arch == "bamboo" else "relu", predictor_rank=32,
        predictor_kind=kind, predictor_input="ffn_input", threshold=0.0, **SMALL,
    )  # fmt: skip
    expected = truth_of(tiny.path, [0.0, 0.0], "ffn_input", [kind] * 2, tiny)
    with pi.Model(tiny.path) as model:
        for sparsity in ("exact", "dense"):  # what the predictor reads is what exact mode computes
            with pi.Context(model, kv_type="f32", sparsity=sparsity, audit=True) as context:
                context.eval(TOKENS)
                found = [(layer.n_active, layer.n_predicted, layer.n_hit) for layer in context.audit if layer]
                assert found == expected
                assert context.stats["predicted_density"] == [None, None]
        with pi.Context(model, kv_type="f32", sparsity="predictor", audit=True) as context:
            audited = context.eval(TOKENS, all_logits=True)
            stats, layers = context.stats, context.audit
            assert (layers[0].n_active, layers[0].n_predicted, layers[0].n_hit) == expected[0]
            assert layers[0].recall == expected[0][2] / expected[0][0]
            assert layers[0].precision == expected[0][2] / expected[0][1]
            assert [layer.n_tokens for layer in layers] == [len(TOKENS)] * 2
            context.reset_stats()
            assert context.audit[0].n_tokens == 0
            assert context.audit[0].recall is context.audit[0].precision is None
            context.eval([3])
            assert context.audit[1].n_tokens == 1
        with pi.Context(model, kv_type="f32", sparsity="predictor") as context:
            assert np.array_equal(context.eval(TOKENS, all_logits=True), audited)
            assert context.stats["predicted_density"] == stats["predicted_density"]
            assert context.stats["density"] == stats["density"]
            for layer, share in zip(layers, stats["density"], strict=True):
                assert layer.n_hit == round(share * len(TOKENS) * tiny.config["d_ff"])
            with pytest.raises(pi.StateError, match="audit=True"):
                _ = context.audit


def test_audits_leave_out_forced_tokens_and_layers_without(tmp_path: Path) -> None:
    tiny = tiny_model(tmp_path / "m.gguf", activation="relu", predictor_rank=[32, 0], threshold=0.0, **SMALL)
    none = tiny_model(tmp_path / "none.gguf", activation="relu", **SMALL)
    with pi.Model(tiny.path) as model, pi.Context(model, audit=True, kv_type="f32") as context:
        context.set_mask(lambda layer, unit, token, position, sequence: np.ones(192, bool) if position % 2 else None)
        logits = context.eval(TOKENS)
        assert context.audit[1] is None
        assert context.audit[0].n_tokens == len(TOKENS) // 2
        assert context.audit[0].n_predicted < 192 * len(TOKENS) // 2
        with pi.Context(model, kv_type="f32") as witness:
            witness.set_mask(
                lambda layer, unit, token, position, sequence: np.ones(192, bool) if position % 2 else None
            )
            assert np.array_equal(witness.eval(TOKENS), logits)
    with pi.Model(none.path) as model, pytest.raises(pi.UnsupportedError, match="no predictor to audit"):
        pi.Context(model, audit=True)
