"""Sides of a matrix product that do not fill the matrix units' tiles.

NVIDIA's guide (Matrix Multiplication Background User's Guide, 2.2, tensor core requirements) asks for sides that are
multiples of 16 bytes: 8 numbers of 16 bits, 4 of TF32, 16 of 8 bits, 2 of float64; since cuBLAS 11 others run too, but
slower, and an A100 is at its best with multiples of 128 bytes. AMD's matrix cores read rows by 16 bytes alike.
"""

from __future__ import annotations

TILE = {"float16": 8, "bfloat16": 8, "tf32": 4, "float32": 4, "float8": 16, "int8": 16, "float64": 2}
"""Numbers in 16 bytes."""


def missed(dimensions: tuple[tuple[str, int], ...], number_format: str) -> tuple[str, ...]:
    """The sides that are no multiple of the tile ("k = 1003"); none for a product with a vector, which fills no tile
    whatever its other sides are."""
    tile = TILE.get(number_format)
    if tile is None or any(size == 1 for _, size in dimensions):
        return ()
    return tuple(f"{name} = {size}" for name, size in dimensions if size % tile)
