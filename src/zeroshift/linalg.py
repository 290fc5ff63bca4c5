"""Inverses and factorisations of symmetric matrices: the ridge precision d (S + tr I)^-1 that ADAPT, GDA-CLIP, TIMO and
OGA share, fast inverses of positive definite matrices, and L D L^T without pivoting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from zeroshift.arrays import Array, Backend, namespace

__all__ = [
    "SMALLEST_TRACE",
    "ZERO_TRACE",
    "Float32Factor",
    "add_half_product",
    "add_to_diagonal",
    "inverse_factor",
    "invert_positive",
    "ldl_inverse",
    "ldl_reduce",
    "multiplies_halves",
    "newton_inverse",
    "positive_inverse",
    "pseudo_inverse",
    "residual_precision",
    "ridge_precision",
    "subtract_product",
    "thin_product",
]

ZERO_TRACE = 1e-24
"""A mean squared deviation up to this is rounding noise of unit vectors: the covariance counts as zero."""

SMALLEST_TRACE = 1e-5
"""ADAPT and the mixture count a trace of the covariance below this as this, which bounds their precision.

It is a root mean square distance of 0.003 from the class means, about what bfloat16 resolves. With less spread the
scores would grow beyond what float64 resolves: at a distance of 1e-7 they are about 1e15, and wrong by more than 1.
"""

INVERSE_LEAF = 32
"""On a CPU, up to this many rows a matrix is inverted by the array library."""

BAND_NUMBERS = 32_768
"""Numbers in a band of rows: 256 kB."""

SMALL_PRODUCT = 400_000
"""Multiplications up to which OpenBLAS does not copy the factors of a product first."""

SMALL_VECTOR_PRODUCT = 8192
"""Multiplications up to which OpenBLAS multiplies a matrix and a vector in one thread."""

NEWTON_ERROR = 1e-17
"""Bound on the relative error of an inverse at which the iteration ends."""

LEAF = 16
"""On a CPU, up to this many rows L D L^T is computed column by column; above, recursively by halves, with matrix
products."""


def ridge_precision(scatter: Array, trace: float, invert: Callable[[Array], Array] | None = None) -> Array:
    """d (S + trace I)^-1 of a scatter matrix S (d, d); `trace` is that of the covariance, and must be positive.

    `invert` replaces the library's general inverse, as by `invert_positive`.

    >>> import numpy as np
    >>> ridge_precision(np.diag([3.0, 1.0]), 1.0)
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    xp = namespace(scatter)
    d = scatter.shape[-1]
    ridge = scatter + trace * xp.eye(d, dtype=scatter.dtype, device=Backend.of(scatter).device)
    return d * (xp.linalg.inv if invert is None else invert)(ridge)


def residual_precision(residuals: Array) -> Array:
    """d pinv((n - 1) M + tr(M) I), M the unbiased covariance of the rows (n, d); zero if they are all equal.

    >>> import numpy as np
    >>> residual_precision(np.array([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.2], [0.0, -0.2]])).round(4)
    array([[37.5   , 0.    ],
           [ 0.    , 17.6471]])
    """
    xp = namespace(residuals)
    n = residuals.shape[0]
    centred = residuals - xp.mean(residuals, axis=0)
    scatter = centred.T @ centred
    trace = float(xp.linalg.trace(scatter)) / max(n - 1, 1)
    # The pseudo-inverse of this matrix is its inverse, or zero if there is no spread.
    return ridge_precision(scatter, trace) if trace > ZERO_TRACE else xp.zeros_like(scatter)


def positive_inverse(matrix: Array) -> Array:
    """Inverse of symmetric positive definite matrices (..., n, n), computed recursively by halves.

    Nearly all of the work is matrix products, so it is three to four times as fast as a general inverse on a CPU. Meant
    for matrices as well conditioned as a scatter with a ridge.
    """
    xp = namespace(matrix)
    n = matrix.shape[-1]
    if Backend.of(matrix).on_gpu:
        torch = sys.modules["torch"]
        return torch.cholesky_inverse(torch.linalg.cholesky_ex(matrix)[0])  # does not wait for the device
    if n <= INVERSE_LEAF:
        return xp.linalg.inv(matrix)
    half = n // 2
    corner = matrix[..., :half, half:]
    first = positive_inverse(matrix[..., :half, :half])
    solved = xp.matmul(first, corner)
    second = positive_inverse(matrix[..., half:, half:] - xp.matmul(xp.matrix_transpose(corner), solved))
    off = xp.matmul(solved, second)
    inverse = xp.empty_like(matrix)
    inverse[..., :half, :half] = first + xp.matmul(off, xp.matrix_transpose(solved))
    inverse[..., :half, half:] = -off
    inverse[..., half:, :half] = -xp.matrix_transpose(off)
    inverse[..., half:, half:] = second
    return inverse


def thin_product(rows: Array, matrix: Array) -> Array:
    """rows @ matrix.T for a few rows (r, d) and many of `matrix` (n, d), both contiguous.

    A BLAS copies `matrix` into another order first, which takes longer than multiplying it by a few rows. Small
    products skip the copy, so on a CPU this is a series of them: about twice as fast as one. They start no threads
    either, for which a single product would have to wait on a busy machine.

    >>> thin_product(np.eye(2, 3), np.arange(6.0).reshape(2, 3))
    array([[0., 3.],
           [1., 4.]])
    """
    (r, d), n = rows.shape, matrix.shape[0]
    if type(rows) is not np.ndarray:
        return rows @ matrix.T if r > 1 else (matrix @ rows[0])[None, :]
    block = SMALL_PRODUCT // (r * d) // 8 * 8 if r > 1 else SMALL_VECTOR_PRODUCT // d
    if not 0 < block < n:
        return rows @ matrix.T if r > 1 else (matrix @ rows[0])[None, :]
    result = np.empty((r, n), dtype=rows.dtype)
    whole = n // block * block
    blocks = matrix[:whole].reshape(-1, block, d)
    if r == 1:
        np.matmul(blocks, rows[0], out=result[0, :whole].reshape(-1, block))
    else:
        result[:, :whole].reshape(r, -1, block)[...] = np.matmul(rows, blocks.transpose(0, 2, 1)).transpose(1, 0, 2)
    if whole < n:
        result[:, whole:] = rows @ matrix[whole:].T
    return result


def inverse_factor(matrix: Array) -> Array:
    """Lower triangular F with F^T F = A^-1 of symmetric positive definite matrices A (..., n, n), by halves.

    >>> import numpy as np
    >>> inverse_factor(np.diag([4.0, 1.0]))
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    xp = namespace(matrix)
    n = matrix.shape[-1]
    if Backend.of(matrix).on_gpu:
        # By its library: halves would be many launches. Without the check for failure, for which the host would wait.
        torch = sys.modules["torch"]
        factor, _ = torch.linalg.cholesky_ex(matrix)
        identity = torch.eye(n, dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)
        return torch.linalg.solve_triangular(factor, identity, upper=False)
    if n <= INVERSE_LEAF:
        return xp.linalg.inv(xp.linalg.cholesky(matrix))
    half = n // 2
    inverse = xp.zeros_like(matrix)
    first = inverse[..., :half, :half] = inverse_factor(matrix[..., :half, :half])
    solved = xp.matmul(matrix[..., half:, :half], xp.matrix_transpose(first))
    rest = matrix[..., half:, half:] - xp.matmul(solved, xp.matrix_transpose(solved))
    second = inverse[..., half:, half:] = inverse_factor(rest)
    inverse[..., half:, :half] = -xp.matmul(second, xp.matmul(solved, first))
    return inverse


def subtract_product(target: Array, left: Array, right: Array) -> None:
    """target -= left @ right in place, a band of rows at a time, so that the product stays in the processor's cache."""
    rows = target.shape[0] if Backend.of(target).on_gpu else max(1, BAND_NUMBERS // target.shape[1])
    for start in range(0, target.shape[0], rows):
        band = slice(start, start + rows)
        # One row without a matrix product: libraries are slow when there is nothing to sum over.
        target[band] -= left[band] @ right if right.shape[0] > 1 else left[band] * right


def ldl_inverse(matrix: Array) -> tuple[Array, Array]:
    """L^-1 (unit lower triangular) and D (..., n) of symmetric matrices (..., n, n) = L diag(D) L^T.

    Without pivoting, so that the leading parts of L and D belong to the leading parts of the matrix. The leading
    minors must not be zero.

    >>> import numpy as np
    >>> inverse, pivots = ldl_inverse(np.array([[2.0, 1.0], [1.0, -1.0]]))
    >>> inverse, pivots
    (array([[ 1. ,  0. ],
           [-0.5,  1. ]]), array([ 2. , -1.5]))
    """
    xp = namespace(matrix)
    n = matrix.shape[-1]
    if Backend.of(matrix).on_gpu:
        return _ldl_by_lu(matrix)
    if n <= LEAF:
        return _ldl_columns(matrix)
    half = n // 2
    first, d1 = ldl_inverse(matrix[..., :half, :half])
    cross = xp.matmul(matrix[..., half:, :half], xp.matrix_transpose(first))
    scaled = cross / d1[..., None, :]
    second, d2 = ldl_inverse(matrix[..., half:, half:] - xp.matmul(scaled, xp.matrix_transpose(cross)))
    inverse = xp.zeros_like(matrix)
    inverse[..., :half, :half] = first
    inverse[..., half:, half:] = second
    inverse[..., half:, :half] = -xp.matmul(second, xp.matmul(scaled, first))
    return inverse, xp.concat([d1, d2], axis=-1)


def ldl_reduce(matrix: Array, rows: Array) -> tuple[Array, Array]:
    """L^-1 rows (..., n, d) in their precision, and D (..., n), of symmetric matrices (..., n, n) as in `ldl_inverse`.

    >>> import numpy as np
    >>> ldl_reduce(np.array([[2.0, 1.0], [1.0, -1.0]]), np.array([[4.0], [3.0]]))
    (array([[4.],
           [1.]]), array([ 2. , -1.5]))
    """
    backend = Backend.of(matrix)
    if backend.on_gpu or matrix.ndim > 2:
        inverse, pivots = ldl_inverse(matrix)
        return backend.xp.matmul(backend.xp.astype(inverse, rows.dtype, copy=False), rows), pivots
    reduced = backend.copy(rows)
    return reduced, _eliminate(backend.copy(matrix), [reduced])


def _eliminate(matrix: Array, others: list[Array]) -> Array:
    """D of a matrix (n, n); multiplies the others (n, m) by L^-1 in place. Overwrites the upper half of the matrix.

    No inverse of L is formed, and no product with a triangular matrix.
    """
    backend = Backend.of(matrix)
    n = matrix.shape[0]
    if n <= LEAF:
        inverse, pivots = _ldl_columns(matrix)
        for other in others:
            other[...] = backend.asarray(inverse, other.dtype) @ other
        return pivots
    half = n // 2
    cross = matrix[:half, half:]
    first = _eliminate(matrix[:half, :half], [cross, *(other[:half] for other in others)])
    scaled = (cross / first[:, None]).T
    matrix[half:, half:] -= scaled @ cross
    for other in others:
        other[half:] -= backend.asarray(scaled, other.dtype) @ other[:half]
    second = _eliminate(matrix[half:, half:], [other[half:] for other in others])
    return backend.xp.concat([first, second])


def _ldl_by_lu(matrix: Array) -> tuple[Array, Array]:
    """For a GPU, where every column would take several kernel launches: LU without pivoting (LAPACK has none)."""
    torch = sys.modules["torch"]
    lu, _, _ = torch.linalg.lu_factor_ex(matrix, pivot=False)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device).expand(matrix.shape)
    inverse = torch.linalg.solve_triangular(lu, identity, upper=False, unitriangular=True)
    return inverse, torch.diagonal(lu, dim1=-2, dim2=-1).clone()


def _ldl_columns(matrix: Array) -> tuple[Array, Array]:
    xp = namespace(matrix)
    backend = Backend.of(matrix)
    n = matrix.shape[-1]
    # The matrix and the identity side by side, so that one step eliminates a column in both.
    rest = xp.empty((*matrix.shape[:-1], 2 * n), dtype=matrix.dtype, device=backend.device)
    rest[..., :n], rest[..., n:] = matrix, xp.eye(n, dtype=matrix.dtype, device=backend.device)
    for c in range(n - 1):
        factors = rest[..., c + 1 :, c : c + 1] / rest[..., c : c + 1, c : c + 1]
        rest[..., c + 1 :, c + 1 : n + c + 1] -= factors * rest[..., c : c + 1, c + 1 : n + c + 1]
    return rest[..., n:], backend.copy(xp.linalg.diagonal(rest[..., :n]))


def add_to_diagonal(matrix: Array, value: Array | float) -> Array:
    """Add `value` to the diagonal of a contiguous matrix (d, d) in place, and return the matrix.

    >>> add_to_diagonal(np.ones((2, 2)), 1.0)
    array([[2., 1.],
           [1., 2.]])
    """
    matrix.reshape(-1)[:: matrix.shape[0] + 1] += value
    return matrix


def invert_positive(matrix: Array) -> Array:
    """Inverse of a symmetric positive definite matrix (d, d), by the fastest way in its library.

    >>> invert_positive(np.array([[2.0, 1.0], [1.0, 2.0]])).round(4)
    array([[ 0.6667, -0.3333],
           [-0.3333,  0.6667]])
    """
    backend = Backend.of(matrix)
    if backend.library == "numpy":
        return positive_inverse(matrix)
    # Without a look at the error code, which would wait for a GPU.
    return backend.xp.cholesky_inverse(backend.xp.linalg.cholesky_ex(matrix).L)


def newton_inverse(matrix: Array, condition: float) -> Array:
    """Inverse of a symmetric matrix (d, d) of torch whose eigenvalues are between 1 and `condition`.

    By Newton's iteration X (2 I - A X), which is products alone. With the bounds each step is scaled so that the error
    becomes as small as it can. A Cholesky factor of a few hundred rows takes a GPU several times as long.
    """
    torch, d = sys.modules["torch"], matrix.shape[0]
    # The best polynomial of degree 1: |1 - x (a - b x)| is at most `error`.
    total, difference = condition + 1.0, condition - 1.0
    scale = 2.0 * total**2 - difference**2
    inverse = matrix * (-8.0 / scale)
    inverse.view(-1)[:: d + 1] += 8.0 * total / scale
    error = difference**2 / scale
    while error > NEWTON_ERROR:
        factor = 2.0 / (2.0 - error**2)
        inverse = torch.addmm(inverse, inverse, matrix @ inverse, beta=2.0 * factor, alpha=-factor)
        error = error**2 / (2.0 - error**2)
    return inverse


def pseudo_inverse(matrix: Array) -> Array:
    """Moore-Penrose inverse of a symmetric positive semidefinite matrix (d, d); without an SVD if it is invertible.

    >>> pseudo_inverse(np.diag([2.0, 0.0]))
    array([[0.5, 0. ],
           [0. , 0. ]])
    """
    xp = namespace(matrix)
    return invert_positive(matrix) if _is_definite(matrix) else xp.linalg.pinv(matrix)


def _is_definite(matrix: Array) -> bool:
    """Whether the matrix is numerically positive definite, judged by the pivots of its Cholesky factor."""
    xp = namespace(matrix)
    try:
        factor = xp.linalg.cholesky(matrix)
    except (np.linalg.LinAlgError, RuntimeError):  # the latter is torch's
        return False
    pivots = xp.linalg.diagonal(factor) ** 2
    d = matrix.shape[-1]
    return bool(xp.min(pivots) > d * d * float(xp.finfo(matrix.dtype).eps) * xp.max(pivots))


ROW_SCALE = 64.0
"""Rows of about unit length are multiplied by this before they are split, so that no part is too small for float16."""

FACTOR_RANGE = 1024.0
"""The entries of a factor are scaled to at most this, for the same reason."""


class Float32Factor:
    """A matrix M (m, d), prepared for products x M^T in float32 with rows x of about unit length.

    On a GPU with tensor cores a float32 product is computed as one product of half precision, three times as long and
    four times as fast: with a number split into two float16, x = h - l, x y = h h' - h l' - l h' up to 2^-22. Sums are
    float32. The error is two to three times that of a float32 product (and a thousandth of TF32's).

    >>> import numpy as np
    >>> factor = Float32Factor(np.eye(2))
    >>> factor.product(factor.rows(np.array([[0.6, 0.8]])))
    array([[0.6, 0.8]], dtype=float32)
    """

    def __init__(self, matrix: Array, largest: float | None = None) -> None:
        """`largest` is at least the absolute value of every entry, if that is known: otherwise the host waits for it
        on a GPU."""
        backend = Backend.of(matrix)
        xp = backend.xp
        self._is_split = multiplies_halves(backend)
        self.unit = 1.0
        """What `unscaled_product` has to be multiplied by."""
        if not self._is_split:
            self._matrix = backend.asarray(matrix, xp.float32)
            return
        if largest is None:
            largest = float(xp.max(xp.abs(matrix)))
        scale = 2.0 ** float(np.floor(np.log2(FACTOR_RANGE / max(largest, 1e-30))))
        self.unit = 1.0 / (scale * ROW_SCALE)
        torch, (m, d) = sys.modules["torch"], matrix.shape
        self._matrix = torch.empty((m, 3 * d), dtype=torch.float16, device=matrix.device)
        high, minus_low, minus_high = self._matrix.split(d, dim=1)
        torch.mul(matrix, scale, out=high)
        torch.neg(high, out=minus_high)
        torch.add(minus_high, matrix, alpha=scale, out=minus_low)

    def rows(self, x: Array) -> Array:
        """Rows (n, d) as `product` takes them, for this factor or any other of the same library and device."""
        xp = namespace(x)
        if not self._is_split:
            return Backend.of(x).asarray(x, xp.float32)
        torch, d = sys.modules["torch"], x.shape[1]
        prepared = torch.empty((x.shape[0], 3 * d), dtype=torch.float16, device=x.device)
        high, again, low = prepared.split(d, dim=1)
        torch.mul(x, ROW_SCALE, out=high)
        torch.sub(high, x, alpha=ROW_SCALE, out=low)
        again.copy_(high)
        return prepared

    def product(self, rows: Array, offsets: Array | None = None, factor: float = 1.0) -> Array:
        """factor x M^T + offsets, (n, m) float32, of prepared rows; `offsets` is (m,) float32."""
        if not self._is_split:
            product = rows @ self._matrix.T
            if factor != 1.0:
                product *= factor
            return product if offsets is None else product + offsets
        torch, beta = sys.modules["torch"], 1.0
        if offsets is None:
            offsets, beta = torch.empty((1,), dtype=torch.float32, device=rows.device), 0.0  # not read
        return torch.addmm(offsets, rows, self._matrix.T, out_dtype=torch.float32, beta=beta, alpha=factor * self.unit)

    def unscaled_product(self, rows: Array) -> Array:
        """x M^T / `unit`, (n, m) float32, of prepared rows."""
        if not self._is_split:
            return rows @ self._matrix.T
        return sys.modules["torch"].mm(rows, self._matrix.T, out_dtype=sys.modules["torch"].float32)

    def add_product(self, rows: Array, out: Array, share: float) -> None:
        """out = x M^T + share * out, of prepared rows; `out` is (n, m) float32 on a GPU."""
        torch = sys.modules["torch"]
        if self._is_split:
            torch.addmm(
                out, rows, self._matrix.T, out_dtype=torch.float32, beta=share, alpha=self.unit, out=out
            )  # fmt: skip
        else:
            out.addmm_(rows, self._matrix.T, beta=share)


def add_half_product(total: Array, weights: Array, rows: Array) -> None:
    """Add weights^T x to a float64 matrix (m, d), with weights (n, m) from 0 to 1 and rows x (n, d) as
    `Float32Factor.rows` prepared them, on a GPU for which `multiplies_halves`. The error is as there."""
    torch, d = sys.modules["torch"], rows.shape[1] // 3
    high, low = (torch.empty(weights.shape, dtype=torch.float16, device=weights.device) for _ in range(2))
    torch.mul(weights, ROW_SCALE, out=high)
    torch.sub(high, weights, alpha=ROW_SCALE, out=low)
    unit = ROW_SCALE**-2
    both = torch.mm(high.T, rows[:, d:], out_dtype=torch.float32)  # with the high and with the low halves of x
    total.add_(both[:, :d], alpha=unit)
    both = torch.addmm(both[:, d:], low.T, rows[:, d : 2 * d], out_dtype=torch.float32)
    total.sub_(both, alpha=unit)


def multiplies_halves(backend: Backend) -> bool:
    """Whether float32 products are computed as products of halves: see `Float32Factor`."""
    return backend.on_gpu and _multiplies_halves(str(backend.device))


@cache
def _multiplies_halves(device: str) -> bool:
    """Whether the device multiplies float16 fast, and torch can return the product in float32."""
    torch: Any = sys.modules["torch"]
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return version >= (2, 8) and torch.cuda.get_device_capability(device) >= (8, 0)
