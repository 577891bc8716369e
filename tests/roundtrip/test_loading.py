import numpy as np
import pytest

torch = pytest.importorskip("torch")
from reef_examples import EXAMPLES  # noqa: E402

from reefknot.errors import ReefknotError  # noqa: E402
from reefknot.format import save, tensor_names  # noqa: E402
from reefknot.loading import load  # noqa: E402
from reefknot.tensors import to_array  # noqa: E402


@pytest.mark.parametrize("example", ["lenet", "convolutional", "every-type"])
@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_load_gives_every_bit(tmp_path, example, effort):
    state = EXAMPLES[example]()
    save(state, tmp_path / "x.reef", effort=effort)
    loaded = load(tmp_path / "x.reef")
    assert list(loaded) == [name for name, _, _ in state.arrays()]
    for name, _, values in state.arrays():
        assert to_array(loaded[name]).tobytes() == np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("effort", ["auto", "fast"])
def test_load_gives_only_the_names_asked_for(tmp_path, effort):
    save(EXAMPLES["convolutional"](), tmp_path / "x.reef", effort=effort)
    assert list(load(tmp_path / "x.reef", names=["tied.weight"])) == ["tied.weight"]
    assert "again" in tensor_names(tmp_path / "x.reef")
    with pytest.raises(ReefknotError, match=r"did you mean 'conv2\.weight'"):
        load(tmp_path / "x.reef", names=["conv9.weight"])


def test_shared_tensors_share_memory(tmp_path):
    save(EXAMPLES["convolutional"](), tmp_path / "x.reef")
    loaded = load(tmp_path / "x.reef")
    assert loaded["tied.weight"].data_ptr() == loaded["fc.weight"].data_ptr()
