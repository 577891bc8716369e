"""Two inner loops that compilers do not vectorise, written as LLVM vector instructions.

`look_up` holds a table of 32 numbers in two registers of 16: on processors with AVX-512, one
instruction looks up sixteen at once. `add_pairs` adds two numbers to the sums of their clusters
with one load and one store, because there is a cell for each *pair* of clusters.

Each is equivalent to the loop in its docstring.
"""

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

TABLE_SIZE = 32  # of `look_up`
LANES = 16
REPLICAS = 4  # of the cells of `add_pairs`: additions to the same cell would wait for each other

_INT = ir.IntType(64)


def can_look_up() -> bool:
    """Whether this processor has the instruction that `look_up` is made of."""
    try:
        return bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
    except RuntimeError:  # it does not say
        return False


def _look_up(typingctx: Any, table: Any, index: Any, out: Any) -> Any:
    """Look up float32 numbers: for n in range(index.size // 16 * 16): out[n] = table[index[n]]."""
    floats = ir.VectorType(ir.FloatType(), LANES)
    narrow, wide = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.IntType(32), LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        low = builder.load(_place(builder, held[0], _INT(0), floats), align=4)
        high = builder.load(_place(builder, held[0], _INT(LANES), floats), align=4)
        permute = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(floats, [floats, wide, floats]),
            "llvm.x86.avx512.vpermi2var.ps.512",
        )
        with cgutils.for_range(builder, builder.udiv(held[1].nitems, _INT(LANES))) as loop:
            at = builder.mul(loop.index, _INT(LANES))
            chosen = builder.load(_place(builder, held[1], at, narrow), align=1)
            found = builder.call(permute, [low, builder.zext(chosen, wide), high])
            builder.store(found, _place(builder, held[2], at, floats), align=4)
        return context.get_dummy_value()

    return types.none(table, index, out), generate


def _add_pairs(typingctx: Any, cells: Any, pairs: Any, terms: Any) -> Any:
    """Add int32 terms, two at a time, to int64 cells.

    For n in range(pairs.size // 4 * 4): cells[n % 4, pairs[n], 0] += terms[2 * n] and
    cells[n % 4, pairs[n], 1] += terms[2 * n + 1]; the cells are given flat.
    """
    sums, added = ir.VectorType(_INT, 2), ir.VectorType(ir.IntType(32), 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        replica = builder.udiv(held[0].nitems, _INT(REPLICAS))
        with cgutils.for_range(builder, builder.udiv(held[1].nitems, _INT(REPLICAS))) as loop:
            for r in range(REPLICAS):
                n = builder.add(builder.mul(loop.index, _INT(REPLICAS)), _INT(r))
                pair = builder.zext(builder.load(builder.gep(held[1].data, [n])), _INT)
                cell = builder.add(builder.mul(pair, _INT(2)), builder.mul(replica, _INT(r)))
                place = _place(builder, held[0], cell, sums)
                both = _place(builder, held[2], builder.mul(n, _INT(2)), added)
                term = builder.sext(builder.load(both, align=4), sums)
                builder.store(builder.add(builder.load(place, align=8), term), place, align=8)
        return context.get_dummy_value()

    return types.none(cells, pairs, terms), generate


def _place(builder: Any, array: Any, index: Any, kind: Any) -> Any:
    """A pointer to a vector inside an array."""
    return builder.bitcast(builder.gep(array.data, [index]), kind.as_pointer())


look_up: Any = intrinsic(_look_up)
add_pairs: Any = intrinsic(_add_pairs)
