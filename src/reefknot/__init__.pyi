from reefknot import export as export
from reefknot.batchnorm import update_batchnorm as update_batchnorm
from reefknot.errors import ConfigError as ConfigError
from reefknot.errors import DataError as DataError
from reefknot.errors import DivergedError as DivergedError
from reefknot.errors import FormatError as FormatError
from reefknot.errors import ReefknotError as ReefknotError
from reefknot.errors import TyingError as TyingError
from reefknot.format import save as save
from reefknot.inspection import inspect as inspect
from reefknot.inspection import verify as verify
from reefknot.kernels.kmeans1d import kmeans1d as kmeans1d
from reefknot.loading import load as load
from reefknot.methods import APT as APT
from reefknot.methods import Method as Method
from reefknot.methods import RandomTying as RandomTying
from reefknot.methods import SparseAPT as SparseAPT
from reefknot.packing.clustering import cluster as cluster
from reefknot.packing.models import pack as pack
from reefknot.shrinking.folding import fold_batchnorm as fold_batchnorm
from reefknot.shrinking.network import Shrunk as Shrunk
from reefknot.shrinking.network import shrink as shrink
from reefknot.state import Codebook as Codebook
from reefknot.state import KeptTensor as KeptTensor
from reefknot.state import TiedState as TiedState
from reefknot.state import TiedTensor as TiedTensor

__version__: str
