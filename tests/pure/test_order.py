"""Orders of elements: what a kernel visits, where it belongs, and back."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from k3jit.lowering.index import Atom, Index, constant, flatten, symbol, unflatten
from k3jit.lowering.order import Order, order_of


def evaluate(index: Index, value: int) -> int:
    """The index where its only symbol is `value`."""

    def atom(a: Atom) -> int:
        if a.kind == "sym":
            return value
        assert a.base is not None
        inner = evaluate(a.base, value)
        return inner // a.divisor if a.kind == "div" else inner % a.divisor

    return index.const + sum(k * atom(a) for a, k in index.terms)


def places(order: Order, size: int) -> list[int]:
    counter = symbol("i", 0, size - 1)
    return [evaluate(order.apply(counter), i) for i in range(size)]


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 5]), min_size=1, max_size=4).map(tuple)


@given(st.data())
def test_transposed_and_reshaped(data: st.DataObject) -> None:
    """Position in x of element i of x.reshape(a).transpose(p), against NumPy."""
    shape = data.draw(shapes)
    permutation = data.draw(st.permutations(range(len(shape))))
    size = prod(shape)
    counter = symbol("i", 0, size - 1) if size > 1 else constant(0)
    turned = tuple(shape[p] for p in permutation)
    at = dict(zip(permutation, unflatten(counter, turned), strict=True))
    order = order_of(flatten([at[d] for d in range(len(shape))], shape), counter, size)
    assert order is not None
    wanted = np.arange(size).reshape(shape).transpose(permutation).reshape(-1)
    if size > 1:
        assert places(order, size) == wanted.tolist()
        assert places(order.inverse(), size) == np.argsort(wanted).tolist()
        assert order.inverse().inverse() == order
        assert order.after(order.inverse(), size) == Order(())


def test_identity_has_no_digits() -> None:
    counter = symbol("i", 0, 23)
    assert order_of(counter, counter, 24) == Order(())
    assert order_of(flatten(unflatten(counter, (2, 3, 4)), (2, 3, 4)), counter, 24) == Order(())
    assert Order(()).apply(counter) == counter


def test_equal_orders_are_equal_values() -> None:
    """However the shape was cut: a kernel is looked up by them."""
    found = []
    for shape, permutation in (((4, 6), (1, 0)), ((2, 2, 6), (2, 0, 1)), ((4, 2, 3), (1, 2, 0))):
        counter = symbol("i", 0, 23)
        at = dict(zip(permutation, unflatten(counter, tuple(shape[p] for p in permutation)), strict=True))
        found.append(order_of(flatten([at[d] for d in range(len(shape))], shape), counter, 24))
    assert found[0] is not None and len(set(found)) == 1


def test_what_is_no_permutation() -> None:
    counter, other = symbol("i", 0, 11), symbol("j", 0, 11)
    assert order_of(counter // 3, counter, 12) is None
    assert order_of((counter % 3) * 4, counter, 12) is None
    assert order_of(counter * 2, counter, 12) is None
    assert order_of(counter * -1 + 11, counter, 12) is None
    assert order_of(counter + 1, counter, 12) is None
    assert order_of(other, counter, 12) is None
    assert order_of((counter // 5) + (counter % 5) * 3, counter, 12) is None
    assert order_of(constant(0), counter, 12) is None
