"""What one training iteration of a model computes, recorded on meta tensors."""

from torch_topoopt.tracing.calls import INPUT, OUTPUT, Call, CallTensor, CallTrace
from torch_topoopt.tracing.leaf_modules import leaf_modules
from torch_topoopt.tracing.records import ProfileError, Read, TracedOperator, tensors
from torch_topoopt.tracing.shape_cache import ShapeCache
from torch_topoopt.tracing.trace import Trace

__all__ = [
    "INPUT",
    "OUTPUT",
    "Call",
    "CallTensor",
    "CallTrace",
    "ProfileError",
    "Read",
    "ShapeCache",
    "Trace",
    "TracedOperator",
    "leaf_modules",
    "tensors",
]
