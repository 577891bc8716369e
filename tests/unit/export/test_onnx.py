"""ONNX files, run by ONNX Runtime beside torch; tensors of shrunk networks as safetensors."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from shrink_networks import NETWORKS, random_network, sparsified
from torch import nn

import reefknot
from reefknot.errors import ConfigError, ReefknotError
from reefknot.export import onnx_file
from reefknot.lab.zoo import NETWORKS as ZOO

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
LENET_5 = next(RECORDS.glob("*_lenet-5-caffe_sparse_apt_seed0")) / "model.reef"


def outputs_of(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0])


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_runtime_gives_what_torch_gives(name, tmp_path):
    model = sparsified(NETWORKS[name](), 1).eval()
    written = reefknot.export.onnx(None, model, tmp_path / "net.onnx", model.example)
    assert written.bytes == (tmp_path / "net.onnx").stat().st_size
    assert written.checked
    inputs = torch.rand(5, *model.example.shape[1:])
    expected = model(inputs).detach()
    torch.testing.assert_close(outputs_of(written.path, inputs), expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1 << 30))
def test_random_networks_are_written_right_or_refused_by_name(tmp_path_factory, seed):
    model = random_network(seed).eval()
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    try:
        reefknot.export.onnx(None, model, path, model.example[:1])
    except ConfigError as error:
        assert "padding with zeros" in str(error) or "not all alike" in str(error)
        assert not path.exists()
        return
    inputs = torch.randn(4, *model.example.shape[1:])
    expected = model(inputs).detach()
    torch.testing.assert_close(outputs_of(path, inputs), expected, rtol=1e-3, atol=1e-4)


def test_a_committed_network_has_indices_of_four_bits_and_one_codebook(tmp_path):
    path = tmp_path / "lenet.onnx"
    model = ZOO["lenet-5-caffe"]()
    written = reefknot.export.onnx(LENET_5, model, path, torch.zeros(1, 1, 28, 28))
    tensors = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    values = set(np.unique(onnx.numpy_helper.to_array(tensors["codebook"])).tolist())
    stored = reefknot.load(LENET_5)
    assert values <= {float(v) for tensor in stored.values() for v in tensor.unique()}
    indices = [t for t in tensors.values() if t.data_type == onnx.TensorProto.UINT4]
    assert {t.name for t in indices} >= {"conv2.weight.i", "fc1.weight.i"}
    weights = sum(np.prod(t.dims) for t in indices)
    assert weights / 2 < written.bytes < weights / 2 + 3_000
    assert written.bytes < 5 * LENET_5.stat().st_size
    assert model.training  # and random, as it was


def test_a_tensor_is_stored_in_the_shortest_way():
    random = np.random.default_rng(0)
    tensors = {
        "few": random.choice([0.0, 1.0, 2.0], (40, 9)).astype(np.float32),
        "some": random.choice(np.arange(100.0), (90, 9)).astype(np.float32),
        "many": random.random((90, 9)).astype(np.float32),
        "small": np.zeros(4, np.float32),
        "whole": np.array([1, 2]),
    }
    kept, decoding = onnx_file.stored(tensors)
    kinds = {tensor.name: tensor.data_type for tensor in kept}
    proto = onnx.TensorProto
    assert kinds["few.i"] == proto.UINT4
    assert kinds["some.i"] == proto.UINT8
    assert kinds["many"] == kinds["small"] == proto.FLOAT
    assert kinds["whole"] == proto.INT64
    assert [node.op_type for node in decoding] == ["Cast", "Gather"] * 2
    packed = next(tensor for tensor in kept if tensor.name == "few.i")
    assert len(packed.raw_data) == 180
    book = next(tensor for tensor in kept if tensor.name == "codebook")
    ids = onnx.numpy_helper.to_array(packed).astype(int)
    assert np.array_equal(onnx.numpy_helper.to_array(book)[ids], tensors["few"])


def test_what_onnx_cannot_express_is_refused_before_anything_is_written(tmp_path):
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 1)

    model = nn.Sequential(nn.Linear(3, 3), Sorted())
    with pytest.raises(ConfigError, match="cumsum cannot be written as ONNX: 'cumsum' is none of"):
        reefknot.export.onnx(None, model, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_runs_differently_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_nibbles", lambda indices: bytes(-(-len(indices) // 2)))
    with pytest.raises(ReefknotError, match="ONNX Runtime gives outputs that are off by"):
        reefknot.export.onnx(
            LENET_5, ZOO["lenet-5-caffe"](), tmp_path / "net.onnx", torch.zeros(1, 1, 28, 28)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_network_whose_input_is_not_known_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the input shape of .* is not known"):
        reefknot.export.onnx(LENET_5, ZOO["lenet-5-caffe"](), tmp_path / "net.onnx")


def test_safetensors_hold_the_shrunk_network(tmp_path):
    path = tmp_path / "net.safetensors"
    model = ZOO["lenet-5-caffe"]()
    written = reefknot.export.safetensors(LENET_5, model, path, torch.zeros(1, 1, 28, 28))
    tensors = load_file(path)
    assert written.bytes == path.stat().st_size
    assert set(model.state_dict()) <= set(tensors)
    assert (
        sum(t.numel() for t in tensors.values()) < sum(p.numel() for p in model.parameters()) / 10
    )
    written.shrunk.model.load_state_dict(tensors)
    model.load_state_dict(reefknot.load(LENET_5))
    inputs = torch.rand(4, 1, 28, 28)
    torch.testing.assert_close(written.shrunk.model(inputs), model(inputs), rtol=0, atol=1e-5)
