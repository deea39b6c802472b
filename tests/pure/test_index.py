"""Index algebra against brute force."""

from hypothesis import given
from hypothesis import strategies as st
from k3jit.lowering.index import Atom, Index, constant, counter, flatten, symbol, unflatten


def value(index: Index, env: dict[Atom, int]) -> int:
    total = index.const
    for atom, k in index.terms:
        if atom.kind == "sym":
            v = env[atom]
        else:
            x = value(atom.base, env)
            v = x // atom.divisor if atom.kind == "div" else x % atom.divisor
        total += k * v
    return total


STEP = st.tuples(st.sampled_from("add_y mul add div mod".split()), st.integers(1, 12))


@given(st.integers(0, 400), st.lists(STEP, max_size=7), st.data())
def test_every_rewrite_keeps_the_value_and_the_bounds(top, steps, data):
    x, y = symbol("x", 0, top), symbol("y", -5, 9)
    index = x
    for name, k in steps:
        index = {
            "add_y": lambda i, k: i + y * k,
            "mul": lambda i, k: i * k,
            "add": lambda i, k: i + k,
            "div": lambda i, k: i // k,
            "mod": lambda i, k: i % k,
        }[name](index, k)
    for _ in range(4):
        vx, vy = data.draw(st.integers(0, top)), data.draw(st.integers(-5, 9))
        want = vx
        for name, k in steps:
            want = {"add_y": want + vy * k, "mul": want * k, "add": want + k, "div": want // k, "mod": want % k}[name]
        assert value(index, {x.terms[0][0]: vx, y.terms[0][0]: vy}) == want
        assert index.lo <= want <= index.hi


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_flatten_undoes_unflatten(shape):
    n = 1
    for s in shape:
        n *= s
    flat = symbol("i", 0, n - 1)
    assert flatten(unflatten(flat, shape), shape) == (flat if n > 1 else constant(0))


def test_rows_of_a_reshaped_array_are_recognised():
    row, col = symbol("r", 0, 14), symbol("c", 0, 76)
    assert flatten(unflatten(row * 77 + col, (3, 5, 7, 11))[:2], (3, 5)) == row
    flat = symbol("i", 0, 3 * 5 * 7 - 1)
    i, j, k = unflatten(flat, (3, 5, 7))
    assert flatten((flatten((i, j), (3, 5)), k), (15, 7)) == flat


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_position_in_a_tile_is_recognised(a, b, rows, columns, row_tiles, column_tiles):
    """A tile of rows x columns in a matrix whose rows have two dimensions: flat positions come back unchanged."""
    tile = counter("t", a * b * row_tiles * column_tiles)
    row_tile, column_tile = unflatten(tile, (a * b * row_tiles, column_tiles))
    lane = counter("lane", columns)
    width = columns * column_tiles
    flat = (row_tile * rows + rows - 1) * width + column_tile * columns + lane
    shape = (a, b * row_tiles * rows, width)
    assert flatten(unflatten(flat, shape), shape) == flat
