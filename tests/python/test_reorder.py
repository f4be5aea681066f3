"""Reordered models: byte-exact rows, the same output, composed ids, and groups of neurons that fire together."""

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest
from helpers.compare import shared_data, spread_error
from helpers.tiny_model import tiny_model, write_gguf
from helpers.with_text import write_text

import powerinfer_py as pi
from powerinfer_py.files import GgufInput
from powerinfer_py.sparsity.activation import (
    ActivationCounts,
    load_counts,
    read_ids,
    read_recorded,
    side_file_of,
    write_side_file,
)
from powerinfer_py.sparsity.cluster import blocks_touched, cluster
from powerinfer_py.sparsity.profile import profile_model
from powerinfer_py.sparsity.reorder import reorder_model

COMMAND = [sys.executable, "-m", "powerinfer_py", "reorder"]
D_FF = 320
TOKENS = np.random.default_rng(3).integers(3, 512, 60)
PER_ROW = (
    "ffn_gate.weight", "ffn_up.weight", "ffn_down_t.weight", "fc2.weight", "ffn_gate_sign.weight", "ffn_gate.bias",
    "ffn_up.bias", "fc2.bias",
)  # fmt: skip


def give_counts(path, seed=0):
    """A side file of random counts, many of them equal."""
    with GgufInput(path) as file:
        counts = np.random.default_rng(seed).integers(0, 40, (2, D_FF))
        write_side_file(side_file_of(path), ActivationCounts(100, counts, None, ""), file.fingerprint)
    return counts


def numpy_tensors(path):
    """Name -> rows of bytes, by the gguf package."""
    with path.open("rb") as file:
        data = file.read()
    copy = path.with_name("as-gguf-" + path.name)
    copy.write_bytes(b"GGUF" + data[4:])
    reader = gguf.GGUFReader(copy)
    found = {}
    for tensor in reader.tensors:
        raw = np.array(tensor.data)
        found[tensor.name] = raw.reshape(-1, raw.shape[-1]) if raw.ndim > 1 else raw
    copy.unlink()
    return found


def logits_of(path, sparsity="exact"):
    with pi.Model(path) as model, pi.Context(model, kv_type="f32", sparsity=sparsity) as context:
        return context.eval(TOKENS, all_logits=True)


@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("arch", ["llama", "bamboo", "falcon", "opt"])
def test_rows_move_as_they_are(arch, dtype, tmp_path):
    options = {"mlp_bias": True} if arch == "llama" else {}
    source = tiny_model(
        tmp_path / "in.gguf",
        arch,
        dtype=dtype,
        d_ff=D_FF,
        predictor_rank=[64, 0],
        density=0.2,
        activation=None,
        **options,
    ).path
    counts = give_counts(source)
    before = source.read_bytes()
    report = reorder_model(source, tmp_path / "out.gguf")
    assert source.read_bytes() == before
    old, new = numpy_tensors(source), numpy_tensors(report.path)
    assert set(new) == set(old) | {f"blk.{i}.{n}" for i in range(2) for n in ("ffn_activation_count", "ffn_neuron_id")}
    n_moved = 0
    for layer in range(2):
        ids = new[f"blk.{layer}.ffn_neuron_id"]
        assert ids.tolist() == sorted(range(D_FF), key=lambda n, row=counts[layer]: (-row[n], n))
        assert np.array_equal(new[f"blk.{layer}.ffn_activation_count"], counts[layer][ids])
        n_moved += np.count_nonzero(ids != np.arange(D_FF))
        for name in list(old):
            rest = name.removeprefix(f"blk.{layer}.")
            if rest in PER_ROW:
                assert np.array_equal(new[name], old.pop(name)[ids]), name
    assert all(np.array_equal(new[name], values) for name, values in old.items())
    assert report.n_moved == n_moved > D_FF
    with GgufInput(report.path) as file, GgufInput(source) as original:
        assert file.get("powerinfer.neuron_order") == "activation"
        assert file.get("powerinfer.activation.tokens") == 100
        assert file.computed_fingerprint() == file.fingerprint != original.computed_fingerprint()
    if dtype == "F32":
        for mode in ("exact", "predictor"):
            assert spread_error(logits_of(report.path, mode), logits_of(source, mode)) < 1e-5


def test_predictors_of_every_kind_move_along(tmp_path):
    signs = {
        f"blk.{i}.ffn_gate_sign.weight": (np.random.default_rng(i).integers(-9, 9, (D_FF, 8)), "I32") for i in (0, 1)
    }
    source = tiny_model(tmp_path / "in.gguf", d_ff=D_FF, predictor_rank=32, fc2_bias=True, tensors=signs).path
    give_counts(source)
    out = reorder_model(source, tmp_path / "out.gguf").path
    old, new = numpy_tensors(source), numpy_tensors(out)
    for name in ("fc2.weight", "fc2.bias", "ffn_gate_sign.weight"):
        assert np.array_equal(new[f"blk.1.{name}"], old[f"blk.1.{name}"][new["blk.1.ffn_neuron_id"]])


def test_again_is_the_same_file(tmp_path):
    source = tiny_model(tmp_path / "in.gguf", d_ff=D_FF, activation="relu").path
    give_counts(source)
    once = reorder_model(source, tmp_path / "once.gguf")
    twice = reorder_model(once.path, tmp_path / "twice.gguf")
    assert twice.n_moved == 0
    assert twice.path.read_bytes() == once.path.read_bytes()


def test_ids_compose_and_side_files_of_the_original_apply(tmp_path):
    source = tiny_model(tmp_path / "in.gguf", d_ff=D_FF, activation="relu").path
    give_counts(source, seed=1)
    first = reorder_model(source, tmp_path / "first.gguf").path
    counts = give_counts(source, seed=2)  # other counts of the original, in its order
    with GgufInput(first) as file:
        assert np.array_equal(read_recorded(file, side_file_of(source)).original_order(), counts)
    second = reorder_model(first, tmp_path / "second.gguf", activation=side_file_of(source)).path
    direct = reorder_model(source, tmp_path / "direct.gguf").path
    old, a, b = numpy_tensors(source), numpy_tensors(second), numpy_tensors(direct)
    assert all(np.array_equal(a[name], b[name]) for name in b)
    for layer in range(2):
        ids = a[f"blk.{layer}.ffn_neuron_id"]
        assert np.array_equal(a[f"blk.{layer}.ffn_up.weight"], old[f"blk.{layer}.ffn_up.weight"][ids])
        assert np.array_equal(a[f"blk.{layer}.ffn_activation_count"], counts[layer][ids])
    foreign = tiny_model(tmp_path / "foreign.gguf", d_ff=D_FF, activation="relu", metadata={"general.name": "x"}).path
    give_counts(foreign)
    with GgufInput(first) as file, pytest.raises(pi.InvalidArgument, match="another model"):
        read_recorded(file, side_file_of(foreign))


def test_reference_folders_apply_through_the_ids(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("powerinfer_py.convert.reference_parts")
    reference = shared_data("reference", "llama-hf")
    folder = reference / "activation"
    out = reorder_model(reference / "ref.powerinfer.gguf", tmp_path / "out.gguf", activation=folder).path
    with GgufInput(out) as file:
        through = read_recorded(file, folder)
        for layer, counts in enumerate(through.counts):
            theirs = torch.load(folder / f"activation_{layer}.pt", weights_only=True).double().numpy()
            assert np.all(np.diff(theirs[through.ids[layer]]) <= 0) and np.all(np.diff(counts) <= 0)


# Plain files.


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_columns_of_plain_files(dtype, tmp_path):
    source = tiny_model(tmp_path / "in.gguf", dtype=dtype, d_ff=D_FF, down="plain", activation="relu", density=0.2).path
    counts = give_counts(source)
    out = reorder_model(source, tmp_path / "out.gguf").path
    with GgufInput(source) as old, GgufInput(out) as new:
        assert not new.is_powerinfer and list(new.tensors) == list(old.tensors)
        ids = read_ids(new)
        assert np.array_equal(load_counts(new).original_order(), counts)
        for layer in range(2):
            name = f"blk.{layer}.ffn_down.weight"
            assert np.array_equal(new.read_f32(name), old.read_f32(name)[:, ids[layer]])
    assert spread_error(logits_of(out), logits_of(source)) < 1e-5
    side_file_of(out).unlink()
    with GgufInput(out) as new, pytest.raises(pi.FormatError, match="original numbers"):
        read_ids(new)


def test_a_kill_between_side_file_and_model_is_harmless(tmp_path, monkeypatch):
    source = tiny_model(tmp_path / "in.gguf", d_ff=D_FF, down="plain", activation="relu").path
    give_counts(source)
    whole = reorder_model(str(source), str(tmp_path / "whole.gguf")).path
    with monkeypatch.context() as killed:

        def kill(old, new):
            if str(new).endswith("out.gguf"):
                raise KeyboardInterrupt
            return rename(old, new)

        rename = os.replace
        killed.setattr("os.replace", kill)
        with pytest.raises(KeyboardInterrupt):
            reorder_model(source, tmp_path / "out.gguf")
    assert side_file_of(tmp_path / "out.gguf").exists() and not (tmp_path / "out.gguf").exists()
    out = reorder_model(source, tmp_path / "out.gguf").path
    assert out.read_bytes() == whole.read_bytes()
    assert side_file_of(out).read_bytes() == side_file_of(whole).read_bytes()
    out.unlink()
    with pytest.raises(pi.InvalidArgument, match=r"out\.gguf\.activation\.npz: exists already"):
        reorder_model(source, out)


def test_quantized_columns_are_refused(tmp_path):
    source = tiny_model(tmp_path / "in.gguf", dtype="Q8_0", d_ff=D_FF, down="plain", activation="relu").path
    give_counts(source)
    with pytest.raises(pi.UnsupportedError, match=r"Q8_0 cannot be taken out.*--allow-requantize"):
        reorder_model(source, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_what_is_not_known_is_refused(tmp_path):
    cold = tiny_model(tmp_path / "cold.gguf", metadata={"powerinfer.hot_neurons": np.array([8, 8], np.uint32)}).path
    with pytest.raises(pi.UnsupportedError, match="two types"):
        reorder_model(cold, tmp_path / "out.gguf")
    experts = {"blk.0.ffn_up_exps.weight": (np.zeros((8, 32), np.float32), "F32")}
    moe = tiny_model(tmp_path / "moe.gguf", tensors=experts).path
    with pytest.raises(pi.UnsupportedError, match="ffn_up_exps"):
        reorder_model(moe, tmp_path / "out.gguf")
    bare = tiny_model(tmp_path / "bare.gguf", activation="relu").path
    with pytest.raises(pi.InvalidArgument, match="powerinfer profile"):
        reorder_model(bare, tmp_path / "out.gguf")
    write_gguf(tmp_path / "empty.gguf", "llama", {}, {})
    with pytest.raises(pi.FormatError, match="is this a model"):
        reorder_model(tmp_path / "empty.gguf", tmp_path / "out.gguf")
    for name, shape in (("blk.0.fc2.bias", 7), ("blk.2.fc2.bias", 512)):
        wrong = tiny_model(tmp_path / "wrong.gguf", tensors={name: (np.zeros(shape, np.float32), "F32")}).path
        with pytest.raises(pi.FormatError, match="expected 512 neurons in one of 2 layers"):
            reorder_model(wrong, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


# Neurons that fire together.


def planted(n_groups, per_group, n_tokens, seed):
    """Groups that fire as one, each for about a tenth of the tokens, shuffled, hottest first; and their numbers."""
    generator = np.random.default_rng(seed)
    group = generator.permutation(np.repeat(np.arange(n_groups), per_group))
    fired = (generator.random((n_tokens, n_groups)) < 0.1)[:, group]
    fired &= generator.random(fired.shape) < 0.9
    order = np.argsort(-fired.sum(axis=0), kind="stable")
    return fired[:, order], group[order]


def test_planted_groups_are_found():
    fired, group = planted(8, 64, 600, 0)
    order = cluster(fired)
    assert sorted(order) == list(range(512))
    blocks = group[order].reshape(8, 64)
    assert np.all(blocks == blocks[:, :1])
    assert blocks_touched(fired) > 3
    assert blocks_touched(fired[:, order]) < 1.0
    heat = fired[:, order].reshape(600, 8, 64).sum(axis=(0, 2))
    assert np.all(np.diff(heat) <= 0)
    assert np.array_equal(cluster(fired), order)


def test_independent_neurons_stay_where_they_are():
    fired = np.random.default_rng(0).random((50, 256)) < 0.9
    assert cluster(fired).tolist() == list(range(256))
    assert cluster(fired[:, :40]).tolist() == list(range(40))


def test_blocks_touched():
    fired = np.zeros((4, 130), bool)
    fired[0, [0, 63]] = fired[1, [63, 64, 129]] = True
    assert blocks_touched(fired) == (1 + 3) / 4
    assert blocks_touched(np.zeros((0, 0), bool)) == 0


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counted")
    text = write_text(folder / "text.txt", 1500)
    tiny = tiny_model(folder / "in.gguf", d_ff=D_FF, activation="relu", density=0.25)
    return profile_model(tiny.path, [text], output=folder / "counted.gguf", n_ctx=64).path, text


def test_clusters_only_move_hot_neurons(counted, tmp_path):
    source, text = counted
    by_count = reorder_model(source, tmp_path / "count.gguf")
    grouped = reorder_model(source, tmp_path / "cluster.gguf", cluster_texts=[text], n_ctx=64)
    with GgufInput(by_count.path) as one, GgufInput(grouped.path) as two:
        a, b = read_ids(one), read_ids(two)
    for layer, n_hot in enumerate(grouped.n_hot):
        assert 64 < n_hot < D_FF
        assert np.array_equal(a[layer, n_hot:], b[layer, n_hot:])
        assert set(a[layer, :n_hot]) == set(b[layer, :n_hot])
    assert spread_error(logits_of(grouped.path), logits_of(source)) < 1e-5
    for path, touched in (
        (by_count.path, grouped.grouping.touched_before),
        (grouped.path, grouped.grouping.touched_after),
    ):
        assert np.allclose(measured_blocks(path, text, grouped.n_hot), touched, atol=0.02)
    assert sum(grouped.grouping.touched_after) <= sum(grouped.grouping.touched_before)
    again = reorder_model(source, tmp_path / "again.gguf", cluster_texts=[text], n_ctx=64)
    assert again.path.read_bytes() == grouped.path.read_bytes()


def measured_blocks(path, text, n_hot):
    """Blocks of 64 of the first n_hot neurons with one that fires, per layer, on the whole text."""
    n_blocks, n_tokens = np.zeros(len(n_hot)), np.zeros(len(n_hot))

    def look(layer, unit, h):
        for row in h:
            n_tokens[layer] += 1
            n_blocks[layer] += len(set(np.flatnonzero(row[: n_hot[layer]]) // 64))

    with pi.Model(path) as model, pi.Context(model, n_ctx=64, sparsity="exact", kv_type="f32") as context:
        context.set_tap("h", look)
        tokens = model.tokenize(text.read_text(encoding="utf-8"))
        for begin in range(0, len(tokens) - 63, 64):
            context.reset()
            context.eval([model.tokenizer.bos, *tokens[begin + 1 : begin + 64]])
    return n_blocks / n_tokens


def test_layers_that_do_not_fit_are_read_in_turn(counted, tmp_path, monkeypatch):
    source, text = counted
    whole = reorder_model(source, tmp_path / "a.gguf", cluster_texts=[text], n_ctx=64)
    monkeypatch.setattr("powerinfer_py.sparsity.within_hot._BUDGET_BYTES", 1)
    parts = reorder_model(source, tmp_path / "b.gguf", cluster_texts=[text], n_ctx=64)
    assert parts.path.read_bytes() == whole.path.read_bytes()


# The command.


def reorder(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_command(counted, tmp_path):
    source, text = counted
    done = reorder(source, tmp_path / "a.gguf", "--within-hot", "cluster", "--text", text, "-c", 64, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert len(facts["n_hot_by_layer"]) == 2 and facts["grouping"]["n_tokens"] >= 1472
    plain = reorder(source, tmp_path / "b.gguf")
    assert plain.returncode == 0 and "neurons per layer make 80 %" in plain.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]
    for arguments, code, message in [
        ([source, tmp_path / "b.gguf"], 1, "--force"),
        ([source, source, "--force"], 1, "never changed"),
        ([source, tmp_path / "c.gguf", "--within-hot", "cluster", "--text", text, "--max-tokens", -4], 1, "max_tokens"),
        ([source, text, "--within-hot", "cluster", "--text", text, "--force"], 1, "never changed"),
        ([source, tmp_path / "c.gguf", "--within-hot", "cluster"], 2, "--text"),
        ([source, tmp_path / "c.gguf", "--text", text], 2, "--within-hot"),
        ([tmp_path / "absent.gguf", tmp_path / "c.gguf"], 1, "absent.gguf"),
    ]:
        done = reorder(*arguments)
        assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]
