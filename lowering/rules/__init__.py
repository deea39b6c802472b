"""Rules of the primitives, a file a family; importing this package registers all of them."""

from . import composite, control, conv, dot, elementwise, index, random, reduce, shape, sort, window

__all__ = ["composite", "control", "conv", "dot", "elementwise", "index", "random", "reduce", "shape", "sort", "window"]
