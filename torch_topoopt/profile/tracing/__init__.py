"""The operators of one training iteration of a model, recorded on meta tensors."""

from torch_topoopt.profile.tracing.bags import Bags, bags_of
from torch_topoopt.profile.tracing.batches import (
    Arguments,
    batch_size_of,
    meta_twin,
    positional_and_keyword,
    resized,
)
from torch_topoopt.profile.tracing.calls import INPUT, OUTPUT, Call, CallTensor, CallTrace, Slot
from torch_topoopt.profile.tracing.devices import as_on_cpu
from torch_topoopt.profile.tracing.leaf_modules import leaf_modules
from torch_topoopt.profile.tracing.records import (
    ProfileError,
    Read,
    Region,
    Span,
    TracedOperator,
    shared_tensors,
    tensors,
)
from torch_topoopt.profile.tracing.sections import feature_sections
from torch_topoopt.profile.tracing.shape_cache import ShapeCache
from torch_topoopt.profile.tracing.split_dimensions import (
    is_elementwise,
    shared_parameters,
    split_dimensions,
)
from torch_topoopt.profile.tracing.trace import Trace

__all__ = [
    "INPUT",
    "OUTPUT",
    "Arguments",
    "Bags",
    "Call",
    "CallTensor",
    "CallTrace",
    "ProfileError",
    "Read",
    "Region",
    "ShapeCache",
    "Slot",
    "Span",
    "Trace",
    "TracedOperator",
    "as_on_cpu",
    "bags_of",
    "batch_size_of",
    "feature_sections",
    "is_elementwise",
    "leaf_modules",
    "meta_twin",
    "positional_and_keyword",
    "resized",
    "shared_parameters",
    "shared_tensors",
    "split_dimensions",
    "tensors",
]
