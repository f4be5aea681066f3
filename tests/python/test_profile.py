"""Activation counts: against transformers, written and read again, resumed, imported, and refused."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.compare import shared_data
from helpers.hf_to_gguf import write_falcon, write_llama, write_opt
from helpers.tiny_model import tiny_model
from helpers.with_text import add_vocabulary, write_text

import powerinfer_py as pi
from powerinfer_py.files import GgufInput, Progress
from powerinfer_py.sparsity import hot_sets
from powerinfer_py.sparsity.activation import (
    ActivationCounts,
    load_counts,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.profile import profile_model
from powerinfer_py.sparsity.text import load_windows

COMMAND = [sys.executable, "-m", "powerinfer_py", "profile"]


class Recorder(Progress):
    def __init__(self, stop_after=None):
        self.notes, self.left = [], stop_after

    def note(self, text):
        self.notes.append(text)

    def advance(self, n=1):
        if self.left is not None:
            self.left -= n
            if self.left < 0:
                raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def text(folder):
    return write_text(folder / "text.txt", 2500)


@pytest.fixture(scope="module")
def sparse(folder):
    return tiny_model(folder / "sparse.gguf", "llama", activation="relu", density=0.2, d_ff=320).path


def counted_by_engine(path, text, n_ctx, max_windows):
    """Counts through the tap, the slow way."""
    with pi.Model(path) as model, pi.Context(model, n_ctx=n_ctx, sparsity="dense", kv_type="f32") as context:
        counts = np.zeros((model.n_layers, model.d_ff), np.int64)

        def add(layer, unit, h):
            for row in h:
                counts[layer] += row != 0

        context.set_tap("h", add)
        for window in load_windows(model, [text], n_ctx=n_ctx, max_windows=max_windows):
            context.reset()
            context.eval(window)
    return counts


# Against transformers.


def hf_model(transformers, kind):
    sizes = {"vocab_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    if kind == "llama":
        config = transformers.LlamaConfig(
            **sizes, intermediate_size=176, num_key_value_heads=2, max_position_embeddings=256, hidden_act="relu",
            mlp_bias=True, tie_word_embeddings=False,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config), write_llama
    if kind == "opt":
        config = transformers.OPTConfig(
            **sizes, ffn_dim=192, max_position_embeddings=256, word_embed_proj_dim=64, dropout=0.0
        )
        return transformers.OPTForCausalLM(config), write_opt
    config = transformers.FalconConfig(
        **sizes, ffn_hidden_size=192, activation="relu", alibi=False, parallel_attn=True, bias=False,
        multi_query=True, new_decoder_architecture=False,
    )  # fmt: skip
    return transformers.FalconForCausalLM(config), write_falcon


def gates(model, kind):
    """The modules whose outputs decide which neurons are non-zero."""
    if kind == "llama":
        return [layer.mlp.gate_proj for layer in model.model.layers]
    if kind == "opt":
        return [layer.fc1 for layer in model.model.decoder.layers]
    return [layer.mlp.dense_h_to_4h for layer in model.transformer.h]


@pytest.mark.parametrize("kind", ["llama", "opt", "falcon"])
def test_counts_are_those_of_transformers(kind, tmp_path, text):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, write = hf_model(transformers, kind)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise / value.shape[1] ** 0.5 if value.ndim == 2 else 0.2 * noise + (not name.endswith("bias")))
    path = add_vocabulary(write(model.eval(), tmp_path / "m.gguf", transposed=True), tmp_path / "v.gguf", 512)
    n_ctx, n_windows = 250, 8
    report = profile_model(path, [text], n_ctx=n_ctx, max_tokens=n_ctx * n_windows)
    assert report.counts.tokens == 2000

    with pi.Model(path) as ours:
        windows = load_windows(ours, [text], n_ctx=n_ctx, max_windows=n_windows)
    seen = {torch.float32: [], torch.float64: []}
    near = []
    for dtype in seen:
        model.to(dtype)
        per_layer = [[] for _ in gates(model, kind)]

        def keep(module, inputs, output, rows, dtype=dtype):
            rows.append((output > 0).reshape(-1, output.shape[-1]).numpy())
            if dtype == torch.float64:
                size = inputs[0].reshape(-1, inputs[0].shape[-1]).norm(dim=1)[:, None] * module.weight.norm(dim=1)
                near.append((output.reshape(size.shape).abs() <= 1e-5 * size).numpy())

        hooks = [
            module.register_forward_hook(lambda m, i, o, rows=rows: keep(m, i, o, rows))
            for module, rows in zip(gates(model, kind), per_layer, strict=True)
        ]
        with torch.no_grad():
            for window in windows:
                model(torch.tensor(window.astype(np.int64))[None])
        for hook in hooks:
            hook.remove()
        seen[dtype] = np.stack([np.concatenate(rows) for rows in per_layer])
    counts = seen[torch.float32].sum(axis=1)  # [n_layers, d_ff]
    n_layers = len(counts)
    near = np.stack([np.concatenate(near[layer::n_layers]) for layer in range(n_layers)])
    difference = np.abs(report.counts.counts - counts)
    print(f"{kind}: {difference.sum()} of {seen[torch.float32].size} entries differ, {near.sum()} are near the cut")
    assert np.all(difference <= near.sum(axis=1))
    assert difference.sum() < 1e-5 * seen[torch.float32].size
    assert 0.2 < report.counts.counts.mean() / 2000 < 0.8


# Kept and read again.


def test_side_file(sparse, text, tmp_path):
    model = tmp_path / "m.gguf"
    os.link(sparse, model)
    before = model.read_bytes()
    report = profile_model(model, [text], n_ctx=64, max_tokens=1000)
    assert report.path == side_file_of(model) == tmp_path / "m.gguf.activation.npz"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gguf.activation.npz"]
    assert model.read_bytes() == before
    expected = counted_by_engine(sparse, text, 64, 15)
    assert report.counts.tokens == 960
    assert np.array_equal(report.counts.counts, expected)
    with np.load(report.path) as archive:
        assert int(archive["tokens"]) == 960
        assert np.array_equal(archive["count_1"], expected[1])
        with GgufInput(model) as file:
            assert str(archive["fingerprint"]) == file.fingerprint
            assert np.array_equal(load_counts(file).counts, expected)
    first = report.path.read_bytes()
    with pytest.raises(pi.InvalidArgument, match="exists already"):
        profile_model(model, [text], n_ctx=64)
    time.sleep(2.1)  # a time in the file, were there one, would have steps of two seconds
    profile_model(model, [text], n_ctx=64, max_tokens=1000, force=True)
    assert report.path.read_bytes() == first


def test_copy_of_the_model(sparse, text, tmp_path):
    target = tmp_path / "counted.gguf"
    report = profile_model(sparse, [text], output=target, n_ctx=64, max_tokens=640)
    with GgufInput(sparse) as source, GgufInput(target) as file:
        assert file.get("powerinfer.activation.tokens") == 640
        assert file.metadata["powerinfer.activation.tokens"].type == "u64"
        assert file.computed_fingerprint() == file.fingerprint == source.computed_fingerprint()
        assert np.array_equal(load_counts(file).counts, report.counts.counts)
        for name in source.tensors:
            assert np.array_equal(source.read(name), file.read(name))
    with pi.Model(sparse) as one, pi.Model(target) as two:
        logits = [pi.Context(model).eval([1, 300, 301, 302]) for model in (one, two)]
        assert np.array_equal(*logits)
    once = target.read_bytes()
    with pytest.raises(pi.InvalidArgument, match="exists"):
        profile_model(target, [text], output=target, n_ctx=64)
    profile_model(target, [text], output=target, n_ctx=64, max_tokens=640, force=True)
    again = target.read_bytes()
    assert len(again) == len(once)
    with GgufInput(target) as file:
        assert len(file.tensors) == len(set(file.tensors)) and load_counts(file).tokens == 640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counted.gguf"]


def test_interrupted_run_goes_on(sparse, tmp_path):
    text = write_text(tmp_path / "text.txt", 12_000)
    whole = profile_model(sparse, [text], output=tmp_path / "whole.gguf", n_ctx=64, max_tokens=20_000)
    target = tmp_path / "cut.gguf"
    with pytest.raises(KeyboardInterrupt):
        profile_model(
            sparse, [text], output=target, n_ctx=64, max_tokens=20_000, progress=Recorder(stop_after=0.7 * 4096 * 2)
        )
    assert not target.exists()
    progress = Recorder()
    report = profile_model(sparse, [text], output=target, n_ctx=64, max_tokens=20_000, progress=progress)
    assert report.n_resumed == 64 and "64 of" in progress.notes[0]
    assert target.read_bytes() == whole.path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gguf", "text.txt", "whole.gguf"]
    other = profile_model(sparse, [write_text(tmp_path / "t.txt", 900, 3)], output=target, n_ctx=64, force=True)
    assert other.n_resumed == 0


def test_killed_run_goes_on(sparse, tmp_path):
    text = write_text(tmp_path / "long.txt", 25_000)
    arguments = [*COMMAND, str(sparse), "--text", str(text), "-c", "128", "-t", "1", "-o"]
    subprocess.run([*arguments, tmp_path / "whole.gguf"], check=True, capture_output=True)
    process = subprocess.Popen(
        [*arguments, tmp_path / "cut.gguf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    journal = tmp_path / "cut.gguf.profile"
    deadline = time.monotonic() + 30
    while not journal.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert journal.exists() and not (tmp_path / "cut.gguf").exists()
    done = subprocess.run([*arguments, tmp_path / "cut.gguf"], check=True, capture_output=True, text=True)
    assert "goes on where an earlier run ended" in done.stderr
    assert (tmp_path / "cut.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert not journal.exists()


def test_damaged_journal_is_ignored(sparse, text, tmp_path):
    target = tmp_path / "m.gguf"
    (tmp_path / "m.gguf.profile").write_bytes(b"PK\x03\x04 not really")
    report = profile_model(sparse, [text], output=target, n_ctx=64, max_tokens=640)
    assert np.array_equal(report.counts.counts, counted_by_engine(sparse, text, 64, 10))


# Refused.


def test_models_without_true_zeros_are_refused(tmp_path, text):
    silu = tiny_model(tmp_path / "silu.gguf", "llama", activation="silu").path
    with pytest.raises(pi.UnsupportedError, match="silu model are meaningless"):
        profile_model(silu, [text])
    assert [path.name for path in tmp_path.iterdir()] == ["silu.gguf"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(value, tmp_path, text):
    with GgufInput(tiny_model(tmp_path / "sound.gguf", "llama", activation="relu", d_ff=320).path) as file:
        gate = file.read_f32("blk.1.ffn_gate.weight").copy()
    gate[7, 3] = value
    path = tiny_model(
        tmp_path / "m.gguf", "llama", activation="relu", d_ff=320, tensors={"blk.1.ffn_gate.weight": (gate, "F32")}
    ).path
    with pytest.raises(pi.FormatError, match=r"m\.gguf: the logits are not finite.*sound source"):
        profile_model(path, [text], n_ctx=64, max_tokens=128)
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "sound.gguf"]


def test_paths_may_be_strings(sparse, text, tmp_path):
    target = str(tmp_path / "out.gguf")
    report = profile_model(str(sparse), str(text), output=target, compare_texts=[str(text)], n_ctx=64, max_tokens=128)
    assert np.array_equal(report.counts.counts, report.compared.counts)
    again = profile_model(
        target, [], output=str(tmp_path / "again.gguf"), activation=str(give_side_file(report, target))
    )
    assert np.array_equal(again.counts.counts, report.counts.counts)


def give_side_file(report, path):
    with GgufInput(path) as file:
        write_side_file(side_file_of(file.path), report.counts, file.fingerprint)
        return side_file_of(file.path)


def test_everything_is_exported_and_nothing_heavy_imported():
    code = (
        "import sys, powerinfer_py, powerinfer_py.sparsity as s; "
        "assert all(callable(getattr(s, name)) for name in s.__all__); "
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules], "
        "s.profile_model.__name__, s.quantize.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "[] profile_model quantize\n"


def test_an_output_is_no_input(sparse, tmp_path):
    text = write_text(tmp_path / "text.txt", 300)
    before = text.read_bytes()
    with pytest.raises(pi.InvalidArgument, match="never changed"):
        profile_model(sparse, [text], output=text, force=True, n_ctx=64)
    assert text.read_bytes() == before


def test_room_for_the_counts_is_looked_for_first(sparse, text, tmp_path, monkeypatch):
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    for output in (None, tmp_path / "out.gguf"):
        progress = Recorder(stop_after=0)
        with pytest.raises(OSError, match="are free"):
            profile_model(sparse, [text], output=output, n_ctx=64, progress=progress)


def test_files_that_others_read_get_no_tensors(tmp_path, text):
    plain = tiny_model(tmp_path / "plain.gguf", "llama", activation="relu", down="plain").path
    with pytest.raises(pi.InvalidArgument, match=r"plain\.gguf\.activation\.npz"):
        profile_model(plain, [text], output=tmp_path / "out.gguf")
    report = profile_model(plain, [text], n_ctx=64, max_tokens=640)
    with GgufInput(plain) as file:
        assert np.array_equal(load_counts(file).counts, report.counts.counts)


def test_wrong_arguments(sparse, text, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("once upon", encoding="utf-8")
    for arguments, message in [
        ({"texts": [short]}, "too few"),
        ({"texts": []}, "either texts"),
        ({"texts": [text], "activation": tmp_path}, "either texts"),
        ({"texts": [text], "max_tokens": 10}, "less than one window"),
        ({"texts": [text], "n_ctx": -1}, "-c -1"),
    ]:
        with pytest.raises(pi.InvalidArgument, match=message):
            profile_model(sparse, output=tmp_path / "o.gguf", **arguments)
    with pytest.raises(OSError, match="absent"):
        profile_model(sparse, [tmp_path / "absent.txt"])
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


def test_side_files_are_not_trusted(sparse, tmp_path):
    path = tmp_path / "m.gguf"
    os.link(sparse, path)
    side = side_file_of(path)
    good = np.zeros(320, np.int32)

    def save(**arrays):
        with side.open("wb") as file:
            np.savez(file, **arrays)

    with GgufInput(path) as file:
        with pytest.raises(pi.InvalidArgument, match=r"profile .* first"):
            load_counts(file)
        fit = {"tokens": np.uint64(9), "fingerprint": np.str_(file.fingerprint)}
        cases = [
            ({**fit, "count_0": good}, "'count_1'"),
            ({**fit, "count_0": good, "count_1": good[:-1]}, "'count_1'"),
            ({**fit, "count_0": good, "count_1": good.astype(float)}, "'count_1'"),
            ({**fit, "count_0": good, "count_1": good - 1}, "negative"),
            ({**fit, "count_0": good, "count_1": np.zeros(1_000_000, np.int32)}, "larger"),
            ({**fit, "count_0": good, "count_1": good, "id_0": good, "id_1": good}, "each once"),
            (fit, "no counts"),
            ({"count_0": good, "fingerprint": fit["fingerprint"]}, "'tokens'"),
            ({"tokens": fit["tokens"], "count_0": good}, "'fingerprint'"),
            ({**fit, "count_0": good, "count_1": np.array([object()] * 320)}, "allow_pickle"),
        ]
        for arrays, message in cases:
            save(**arrays)
            with pytest.raises(pi.FormatError, match=message):
                load_counts(file)
        save(**{**fit, "fingerprint": np.str_("0" * 32)}, count_0=good, count_1=good)
        with pytest.raises(pi.InvalidArgument, match="another model"):
            load_counts(file)
        save(**fit, count_0=good, count_1=good)
        whole = side.read_bytes()
        assert load_counts(file).tokens == 9
        for size in (0, 10, len(whole) // 2, len(whole) - 5):
            side.write_bytes(whole[:size])
            with pytest.raises(pi.FormatError, match="no usable side file"):
                load_counts(file)
        generator = np.random.default_rng(0)
        for _ in range(200):
            broken = bytearray(whole)
            broken[generator.integers(len(whole))] ^= 1 << int(generator.integers(8))
            side.write_bytes(broken)
            try:
                load_counts(file)
            except pi.Error as error:
                assert str(side) in str(error)


def test_import_of_a_side_file(sparse, text, tmp_path):
    side = profile_model(sparse, [text], n_ctx=64, max_tokens=640, force=True).path
    target = tmp_path / "m.gguf"
    report = profile_model(sparse, [], activation=side, output=target)
    with GgufInput(target) as file:
        assert load_counts(file).tokens == 640
        assert np.array_equal(load_counts(file).counts, report.counts.counts)
    side.unlink()


def test_import_of_the_references_folder(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("powerinfer_py.convert.reference_parts")
    reference = shared_data("reference", "llama-hf")
    model = reference / "ref.powerinfer.gguf"
    report = profile_model(model, [], activation=reference / "activation", output=tmp_path / "m.gguf")
    for layer, row in enumerate(report.counts.counts):
        theirs = torch.load(reference / "activation" / f"activation_{layer}.pt", weights_only=True).double().numpy()
        order = np.argsort(-theirs, kind="stable")
        assert np.all(np.diff(row[order]) <= 0)
    assert report.counts.tokens == 0 or report.counts.tokens == 1_000_000
    bare = tmp_path / "bare.gguf"
    tiny_model(bare, "llama", n_layers=3)
    with pytest.raises(pi.Error):
        profile_model(bare, [], activation=reference / "activation")


# What the counts say.


def test_statistics():
    counts = np.array([[50, 30, 10, 10], [0, 0, 0, 0], [1, 1, 1, 97]], np.int64)
    assert np.allclose(hot_sets.density(counts, 100), [0.25, 0, 0.25])
    assert np.isnan(hot_sets.density(counts, 0)).all()
    assert np.allclose(hot_sets.cumulative(counts[0]), [0.5, 0.8, 0.9, 1])
    assert hot_sets.hot_shares(counts).tolist() == [0.5, 0, 0.25]
    assert hot_sets.n_neurons_for(counts, 0.8) == 3  # 97 + 50 + 30 of 200
    assert hot_sets.overlaps(counts, counts[:, ::-1], 0.5).tolist() == [0, 1, 0.5]
    assert hot_sets.hot_order(counts[0], np.array([0, 1, 3, 2])).tolist() == [0, 1, 3, 2]


def test_counts_become_those_of_the_original():
    ids = np.array([[2, 0, 1]])
    assert ActivationCounts(1, np.array([[7, 8, 9]]), ids, "").original_order().tolist() == [[8, 9, 7]]


def test_too_many_activations_for_a_file(tmp_path):
    with pytest.raises(pi.InvalidArgument, match="more than a file can hold"):
        write_side_file(tmp_path / "s.npz", ActivationCounts(2**40, np.array([[2**31]]), None, ""), "")
    assert not list(tmp_path.iterdir())


# The command.


def profile(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_command(sparse, text, tmp_path):
    other = write_text(tmp_path / "other.txt", 2500, 1)
    arguments = [sparse, "--text", text, "--compare-text", other, "-c", 64, "--max-tokens", 1000]
    done = profile(*arguments, "-o", tmp_path / "m.gguf", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    one, two = counted_by_engine(sparse, text, 64, 15), counted_by_engine(sparse, other, 64, 15)
    assert facts["density_by_layer"] == pytest.approx((one.mean(axis=1) / 960).tolist(), abs=1e-5)
    assert facts["compared"]["density_by_layer"] == pytest.approx((two.mean(axis=1) / 960).tolist(), abs=1e-5)
    for layer, share in enumerate(facts["hot_share_by_layer"]):
        falling = np.sort(one[layer])[::-1]
        n = round(share * 320)
        assert falling[:n].sum() >= 0.8 * falling.sum() > falling[: n - 1].sum()
    hot = [[set(np.argsort(-counts[layer], kind="stable")[:64]) for counts in (one, two)] for layer in range(2)]
    assert facts["hot_overlap_by_layer"] == [len(a & b) / 64 for a, b in hot]
    table = profile(*arguments, "-o", tmp_path / "t.gguf").stdout
    assert "of all neurons make 80 % of the activations" in table and "overlap" in table
    assert len(table.strip().splitlines()) > 8


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_figures_are_the_same_every_time(kind, sparse, text, tmp_path):
    pytest.importorskip("matplotlib")
    for name in "ab":
        done = profile(
            sparse, "--text", text, "-c", 64, "--max-tokens", 640, "-o", tmp_path / f"{name}.gguf", "--plot",
            tmp_path / f"{name}.{kind}", "--compare-text", text,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert (tmp_path / f"a.{kind}").stat().st_size > 5000


def test_command_errors(sparse, text, tmp_path):
    for arguments, code, message in [
        ([sparse], 2, "--text"),
        ([sparse, "--text", tmp_path / "absent"], 1, "absent"),
        ([tmp_path / "absent.gguf", "--text", text], 1, "absent.gguf"),
        ([sparse, "--text", text, "--plot", tmp_path / "x.pdf"], 1, ".png or .svg"),
        ([sparse, "--text", text, "-o", sparse], 1, "--force"),
        ([sparse, "--text", text, "-o", tmp_path / "no" / "m.gguf"], 1, "does not exist"),
        ([sparse, "--activation", tmp_path / "absent"], 1, "absent"),
    ]:
        done = profile(*arguments)
        assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stdout == ""
