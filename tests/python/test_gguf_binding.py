"""Files as Python sees them: metadata, tensors, dequantized values, errors."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from helpers.tiny_model import DTYPES, encode_tensor, tiny_model

import powerinfer_py as pi


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "F32"])
def test_dequantize_is_bit_for_bit_as_gguf_py(dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((8, 512)).astype(np.float32)
    values[0] = 0
    data, _ = encode_tensor(values, dtype)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[dtype]).ravel()
    found = pi.dequantize(dtype, np.ascontiguousarray(data), values.size)
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), expected.astype(np.float32).view(np.uint32))


def test_dequantize_refuses_wrong_sizes_and_types() -> None:
    with pytest.raises(pi.InvalidArgument, match="take 34 bytes, got 33"):
        pi.dequantize("Q8_0", bytes(33), 32)
    with pytest.raises(pi.InvalidArgument):
        pi.dequantize("Q8_0", bytes(34), 31)
    with pytest.raises(pi.UnsupportedError, match="Q8_0"):
        pi.dequantize("Q3_K", bytes(110), 256)
    with pytest.raises(pi.InvalidArgument):
        pi.dequantize("I32", bytes(4), 1)


def test_metadata_and_tensors(tmp_path: Path) -> None:
    extra = {
        "test.u8": np.uint8(200),
        "test.i64": np.int64(-(2**40)),
        "test.f64": np.float64(0.1),
        "test.flag": True,
        "test.numbers": np.arange(5, dtype=np.int16),
        "test.flags": np.array([True, False]),
        "test.texts": ["a", "ü"],
    }
    tiny = tiny_model(tmp_path / "m.gguf", "bamboo", dtype="Q4_0", metadata=extra)
    file = pi.GgufFile(tiny.path)
    assert file.has_powerinfer_magic
    assert file.version == 3
    assert file.n_bytes == tiny.path.stat().st_size
    metadata = file.metadata
    assert metadata["general.architecture"] == "bamboo"
    for key, value in extra.items():
        if isinstance(value, np.ndarray):
            assert metadata[key].dtype == value.dtype
            assert metadata[key].tolist() == value.tolist()
        else:
            assert metadata[key] == value
    assert len(metadata["tokenizer.ggml.tokens"]) == tiny.config["n_vocab"]

    tensors = {tensor.name: tensor for tensor in file.tensors}
    assert tensors.keys() == tiny.tensors.keys()
    for name, values in tiny.tensors.items():
        assert tensors[name].shape == values.shape[::-1]
        assert np.array_equal(file.dequantize(name), values)
        assert file.data(name).nbytes == tensors[name].n_bytes
    assert tensors["blk.0.ffn_up.weight"].type == "Q4_0"
    with pytest.raises(pi.InvalidArgument, match=r"blk\.9"):
        file.data("blk.9.ffn_up.weight")


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(pi.InvalidArgument, match="absent"):
        pi.GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(pi.InvalidArgument):
        pi.GgufFile(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(pi.FormatError, match=r"empty\.gguf"):
        pi.GgufFile(tmp_path / "empty.gguf")
    with pytest.raises(pi.InvalidArgument, match="access"):
        pi.GgufFile(tmp_path / "empty.gguf", access="write")


def test_errors_derive_from_builtins() -> None:
    pairs = {
        pi.FormatError: ValueError,
        pi.UnsupportedError: ValueError,
        pi.InvalidArgument: ValueError,
        pi.OutOfMemoryError: MemoryError,
        pi.DeviceError: RuntimeError,
        pi.StateError: RuntimeError,
        pi.CancelledError: RuntimeError,
    }
    for error, builtin in pairs.items():
        assert issubclass(error, pi.Error)
        assert issubclass(error, builtin)
        assert error.__module__ == "powerinfer_py"
