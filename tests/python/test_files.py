"""Tool-side reading and writing of model files: exact copies, fingerprints, resuming, refusals."""

import errno
import hashlib
import os
import struct
import subprocess
import sys
import textwrap

import gguf
import numpy as np
import pytest

import powerinfer_py as pi
from powerinfer_py.files import (
    GgufInput,
    GgufOutput,
    Progress,
    Value,
    check_free_disk,
    load_torch_state,
    write_atomically,
)


def copy(source, target, *, identity="", produce=None, progress=None, force=False, before_naming=None):
    output = GgufOutput(target, powerinfer=source.is_powerinfer, force=force)
    output.copy_metadata(source)
    for tensor in source.tensors.values():
        output.add_tensor(tensor.name, tensor.type, tensor.shape)
    read = produce or (lambda spec: source.read(spec.name))
    return output.write(read, identity=source.identity + identity, progress=progress, before_naming=before_naming)


@pytest.fixture
def bundled():
    with GgufInput(pi.bundled_model_path()) as file:
        yield file


def test_copy_is_the_same_model(bundled, tmp_path):
    report = copy(bundled, tmp_path / "copy.gguf")
    assert report.n_tensors == len(bundled.tensors) and report.n_resumed == 0
    assert sorted(os.listdir(tmp_path)) == ["copy.gguf"]
    with GgufInput(tmp_path / "copy.gguf") as again:
        assert list(again.tensors) == list(bundled.tensors)
        assert {k: v.type for k, v in again.metadata.items()} == {k: v.type for k, v in bundled.metadata.items()}
        for name in bundled.tensors:
            assert np.array_equal(again.read(name), bundled.read(name))
        assert again.fingerprint == bundled.fingerprint == again.computed_fingerprint() == report.fingerprint


def test_fingerprint_is_the_documented_digest(bundled):
    data = bytearray(pi.bundled_model_path().read_bytes())
    digest = hashlib.blake2b(digest_size=16)
    file = pi.GgufFile(pi.bundled_model_path())
    side = ("fc1.weight", "fc2.weight", "fc2.bias", "ffn_gate_sign.weight", "ffn_activation_count", "ffn_neuron_id")
    for tensor in sorted(file.tensors, key=lambda each: each.name):
        if tensor.name.endswith(side):
            continue
        digest.update(tensor.name.encode())
        numbers = (int(gguf.GGMLQuantizationType[tensor.type]), *tensor.shape)
        digest.update(struct.pack(f"<{len(numbers)}Q", *numbers))
        digest.update(data[tensor.offset : tensor.offset + tensor.n_bytes])
    assert digest.hexdigest() == bundled.fingerprint


def test_rows_are_those_of_the_gguf_package(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    values = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    writer.add_tensor(
        "q", gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("f", values.reshape(2, 3, 64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufInput(tmp_path / "t.gguf") as file:
        expected = gguf.quants.dequantize(
            gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
        )
        assert np.array_equal(file.read_f32("q", 2, 3), expected[2:5])
        assert np.array_equal(file.read_f32("f"), values)
        with pytest.raises(pi.InvalidArgument, match="has 6 rows, not 4 to 7"):
            file.read("q", 4, 3)
        with pytest.raises(pi.FormatError, match="'absent' is missing"):
            file.read("absent")
        first = file.fingerprint
    assert len(first) == 32


def test_every_value_type_survives(tmp_path):
    values = {
        "a.u8": Value("u8", 255), "a.i8": Value("i8", -128), "a.u16": Value("u16", 65535), "a.i16": Value("i16", -5),
        "a.u32": Value("u32", 2**32 - 1), "a.i32": Value("i32", -(2**31)), "a.u64": Value("u64", 2**64 - 1),
        "a.i64": Value("i64", -(2**63)), "a.f32": Value("f32", 0.5), "a.f64": Value("f64", 1e300),
        "a.bool": Value("bool", True),
        "a.string": Value("string", "not utf-8: \udcff"), "a.strings": Value("[string]", ["x", "\udc80y", ""]),
        "a.bools": Value("[bool]", [True, False]), "a.empty": Value("[i32]", np.zeros(0, np.int32)),
        "a.f32s": Value("[f32]", np.array([1.5, -2], np.float32)),
    }  # fmt: skip
    output = GgufOutput(tmp_path / "v.gguf", powerinfer=False)
    for key, value in values.items():
        output.set(key, value)
    output.write(lambda spec: b"", identity="")
    with GgufInput(tmp_path / "v.gguf") as file:
        for key, value in values.items():
            found = file.metadata[key]
            assert found.type == value.type and np.array_equal(found.value, value.value), key
    bad = GgufOutput(tmp_path / "w.gguf", powerinfer=False)
    bad.set("a.u8", 256, "u8")
    with pytest.raises(pi.InvalidArgument, match=r"'a\.u8': 256 is no u8"):
        bad.write(lambda spec: b"", identity="")
    assert not (tmp_path / "w.gguf").exists()


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_interrupted_run_goes_on(bundled, tmp_path):
    target = tmp_path / "copy.gguf"
    seen = []

    def fails(spec):
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.append(spec.name)
        return bundled.read(spec.name)

    with pytest.raises(KeyboardInterrupt):
        copy(bundled, target, produce=fails)
    assert not target.exists()
    rest, notes = [], Notes()

    def counts(spec):
        rest.append(spec.name)
        return bundled.read(spec.name)

    report = copy(bundled, target, produce=counts, progress=notes)
    assert report.n_resumed == 5 and not set(seen) & set(rest)
    assert any("5 of" in note for note in notes.notes)
    undisturbed = copy(bundled, tmp_path / "again.gguf")
    assert undisturbed.n_resumed == 0
    assert target.read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_other_inputs_start_anew(bundled, tmp_path):
    def fails(spec):
        if "output" in spec.name:
            raise KeyboardInterrupt
        return bytes(spec.n_bytes)

    with pytest.raises(KeyboardInterrupt):
        copy(bundled, tmp_path / "copy.gguf", produce=fails, identity="zeros")
    report = copy(bundled, tmp_path / "copy.gguf", identity="true weights")
    assert report.n_resumed == 0 and report.fingerprint == bundled.fingerprint


def test_bad_input_leaves_nothing(bundled, tmp_path):
    def fails(spec):
        raise pi.FormatError("tensor is broken")

    with pytest.raises(pi.FormatError):
        copy(bundled, tmp_path / "copy.gguf", produce=fails)
    assert os.listdir(tmp_path) == []


def test_wrong_number_of_bytes_is_refused(bundled, tmp_path):
    for size in (-1, 1):
        with pytest.raises(ValueError, match="expected"):
            copy(bundled, tmp_path / "copy.gguf", produce=lambda spec, size=size: bytes(spec.n_bytes + size))
    assert not (tmp_path / "copy.gguf").exists()


def test_existing_output_needs_force(bundled, tmp_path):
    target = tmp_path / "copy.gguf"
    target.write_text("precious")
    with pytest.raises(pi.InvalidArgument, match="--force"):
        copy(bundled, target)
    assert target.read_text() == "precious"
    copy(bundled, target, force=True)
    assert target.stat().st_size == pi.bundled_model_path().stat().st_size
    with pytest.raises(pi.InvalidArgument, match="does not exist"):
        GgufOutput(tmp_path / "no" / "x.gguf", powerinfer=False)


def test_second_writer_is_refused(bundled, tmp_path):
    def nested(spec):
        with pytest.raises(pi.InvalidArgument, match="another process"):
            copy(bundled, tmp_path / "copy.gguf")
        return bundled.read(spec.name)

    copy(bundled, tmp_path / "copy.gguf", produce=nested)


def test_killed_process_leaves_a_usable_part(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        import powerinfer_py as pi
        from powerinfer_py.files import GgufInput, GgufOutput
        source = GgufInput(pi.bundled_model_path())
        output = GgufOutput(sys.argv[1], powerinfer=True)
        output.copy_metadata(source)
        for tensor in source.tensors.values():
            output.add_tensor(tensor.name, tensor.type, tensor.shape)
        left = int(sys.argv[2])
        def produce(spec):
            global left
            left -= 1
            data = source.read(spec.name)
            yield data[: len(data) // 2]
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            yield data[len(data) // 2 :]
        print(output.write(produce, identity=source.identity).n_resumed)
        """
    )
    target = tmp_path / "copy.gguf"

    def run(n):
        command = [sys.executable, "-c", script, str(target), str(n)]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    assert run(8).returncode == -9 and not target.exists()
    assert run(8).returncode == -9 and not target.exists()
    last = run(0)
    assert last.returncode == 0 and last.stdout.strip() == "14"
    assert os.listdir(tmp_path) == ["copy.gguf"]
    with GgufInput(pi.bundled_model_path()) as bundled:
        copy(bundled, tmp_path / "undisturbed.gguf")
    assert target.read_bytes() == (tmp_path / "undisturbed.gguf").read_bytes()


def test_full_disk_is_told_before_anything_is_written(bundled, tmp_path, monkeypatch):
    class Usage:
        free = 3 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(OSError) as caught:
        copy(bundled, tmp_path / "copy.gguf")
    assert caught.value.errno == errno.ENOSPC and "are free" in str(caught.value)
    assert os.listdir(tmp_path) == []
    check_free_disk(tmp_path, 1 << 20)


def test_disk_full_while_writing_keeps_what_is_finished(bundled, tmp_path):
    def fails(spec):
        if spec.name == "output_norm.weight":
            raise OSError(errno.ENOSPC, "No space left on device")
        return bundled.read(spec.name)

    with pytest.raises(OSError, match=r"finished tensors stay .* it goes on there") as caught:
        copy(bundled, tmp_path / "copy.gguf", produce=fails)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "copy.gguf.part")
    assert not (tmp_path / "copy.gguf").exists()
    assert copy(bundled, tmp_path / "copy.gguf").n_resumed > 0


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    def fails(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="Free some space") as caught:
        write_atomically(tmp_path / "counts.npz", fails)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "counts.npz")
    assert os.listdir(tmp_path) == []


def test_what_an_earlier_run_left_is_no_used_space(bundled, tmp_path, monkeypatch):
    size = bundled.path.stat().st_size

    class Usage:
        @property
        def free(self):
            return size + (2 << 20) - sum(path.stat().st_size for path in tmp_path.iterdir())

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage())
    (tmp_path / "copy.gguf.part").write_bytes(bytes(size // 2))
    GgufOutput(tmp_path / "copy.gguf", powerinfer=True).check_free_disk(size)
    with pytest.raises(OSError, match="are free"):
        check_free_disk(tmp_path, size)
    assert copy(bundled, tmp_path / "copy.gguf").n_resumed == 0


def test_what_lies_beside_a_file_is_there_before_its_name(bundled, tmp_path):
    seen = []

    def stop(fingerprint):
        seen.append((fingerprint, (tmp_path / "copy.gguf").exists()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(bundled, tmp_path / "copy.gguf", before_naming=stop)
    assert not (tmp_path / "copy.gguf").exists()
    report = copy(bundled, tmp_path / "copy.gguf", before_naming=lambda fingerprint: None)
    assert report.n_resumed == report.n_tensors
    assert seen == [(report.fingerprint, False)]


class Exploit:
    def __reduce__(self):
        return os.system, ("touch exploited",)


def test_torch_files(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    weight = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    torch.save({"a": weight, "b": torch.tensor([1, 2])}, "good.pt")
    loaded = load_torch_state("good.pt")
    upper_halves = np.arange(6, dtype=np.float32).reshape(2, 3).view(np.uint32) >> 16
    assert np.array_equal(loaded["a"]["bfloat16"], upper_halves) and loaded["b"].dtype == np.int64
    torch.save(torch.ones(3), "single.pt")
    assert np.array_equal(load_torch_state("single.pt")[""], np.ones(3, np.float32))
    torch.save({"a": weight, "x": Exploit()}, "code.pt")
    with pytest.raises(pi.FormatError, match=r"code\.pt: holds more than tensors"):
        load_torch_state("code.pt")
    assert not os.path.exists("exploited")
    (tmp_path / "text.pt").write_text("no tensors here")
    with pytest.raises(pi.FormatError, match=r"text\.pt"):
        load_torch_state("text.pt")
    torch.save({"a": [1, 2]}, "list.pt")
    with pytest.raises(pi.FormatError, match="expected a tensor, got list"):
        load_torch_state("list.pt")


def test_without_torch_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pi.UnsupportedError, match=r"powerinfer_py\[train\]"):
        load_torch_state(tmp_path / "x.pt")
