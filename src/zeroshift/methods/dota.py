"""DOTA: a Gaussian per class, learned from soft labels; each sample is predicted before it is learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from zeroshift.arrays import Array, Backend, Rows, is_double
from zeroshift.linalg import Whitening, add_to_diagonal, invert_positive
from zeroshift.method import ViewMethod
from zeroshift.parameters import Choice, Number, parameter, state
from zeroshift.state_checks import check_lengths, check_range, check_seen, check_semidefinite
from zeroshift.threads import Threads, own_threads
from zeroshift.views import RATIO, select_lowest_entropy
from zeroshift.zero_shot import logits, softmax

__all__ = ["DOTA", "SoftGaussians", "SoftHead", "SoftStream", "SoftUpdate"]

WORK_NUMBERS, GPU_WORK_NUMBERS = 1_000_000, 100_000_000
"""Numbers of the sums S_k changed together, on the CPU by one thread and on a GPU."""


class SoftUpdate(NamedTuple):
    """An update of `SoftGaussians` by samples x (n, d) with soft labels y (n, K).

    Sample i is compared with the mean of class k at its turn, own[i, k] mu_k + sum_j mixed[k, i, j] x_j, where mu_k is
    the mean before the first sample. `mixed` None stands for zeros.
    """

    x: Array
    y: Array
    own: Array
    mixed: Array | None
    means: Array
    """Means (K, d) afterwards."""
    counts: Array
    """Counts (K,) afterwards."""


class SoftGaussians:
    """Gaussians learned from soft labels: means (K, d), counts (K,), sums S_k (K, d, d) and shared covariance (d, d).

    A sample x with soft labels y changes every class k, with the mean as it was before the sample:

        S_k += y_k (x - mu_k)(x - mu_k)^T,   mu_k = (c_k mu_k + y_k x) / (c_k + y_k),   c_k += y_k,

    and the shared covariance is the mean over classes of (sigma I + S_k) / c_k. The sums are stored in `dtype`.

    >>> import numpy as np
    >>> gaussians = SoftGaussians(np.zeros((2, 2)), sigma=0.5, dtype=np.float64)
    >>> gaussians.learn(gaussians.joint_update(np.array([[0.8, 0.6]]), np.array([[0.731059, 0.268941]])))
    >>> gaussians.means.round(6)
    array([[0.337855, 0.253391],
           [0.169553, 0.127165]])
    >>> gaussians.shared.round(6)
    array([[0.544398, 0.152222],
           [0.152222, 0.455602]])
    """

    def __init__(self, means: Array, sigma: float, dtype: Any) -> None:
        backend = Backend.of(means)
        classes, d = means.shape
        self.sigma = sigma
        # Without the sigma I that every class starts from: zeros take no memory until they are written to.
        self.sums = backend.zeros((classes, d, d), dtype)
        self.means = means
        self.counts = backend.zeros((classes,)) + 1.0
        self.shared = self.average(backend.zeros((d, d)), self.counts)
        self.waiting = (backend.zeros((0, d)), backend.zeros((0, classes)))
        """Samples (n, d) and soft labels (n, K) that were seen but are not part of the sums yet, see `SoftStream`."""

    def average(self, total: Array, counts: Array) -> Array:
        """The shared covariance, computed in place from `total`, the sum over classes of S_k / c_k."""
        total /= counts.shape[0]
        return add_to_diagonal(total, self.sigma * Backend.of(total).xp.mean(1 / counts))

    def joint_update(self, x: Array, y: Array) -> SoftUpdate:
        """The update by samples that are all compared with the present means."""
        xp = Backend.of(x).xp
        counts = self.counts + xp.sum(y, axis=0)
        means = (self.counts[:, None] * self.means + y.T @ x) / counts[:, None]
        return SoftUpdate(x, y, xp.ones_like(y), None, means, counts)

    def learn(self, update: SoftUpdate, threads: Threads | None = None) -> None:
        """Apply an update, some classes at a time."""
        backend, (classes, d) = Backend.of(self.sums), self.means.shape
        size = max(1, (GPU_WORK_NUMBERS if backend.on_gpu else WORK_NUMBERS) // (d * d))
        weights = backend.asarray(1 / update.counts, self.sums.dtype)

        def change(start: int) -> Array:
            """Change the sums of some classes; return their part of the shared covariance."""
            part = slice(start, start + size)
            sums, centred = self.sums[part], self._centred(update, part)
            sums += backend.xp.matmul(backend.xp.matrix_transpose(centred), centred)
            return weights[part] @ backend.xp.reshape(sums, (-1, d * d))

        total = backend.zeros((d * d,))
        for part in (threads or Threads()).map(change, range(0, classes, size)):
            total += part
        self.means, self.counts = update.means, update.counts
        self.waiting = (self.waiting[0][:0], self.waiting[1][:0])
        self.shared = self.average(backend.xp.reshape(total, (d, d)), update.counts)

    def _centred(self, update: SoftUpdate, part: slice) -> Array:
        """sqrt(y_ik) (x_i - mu_k) of some classes (k, n, d), with the means at each sample's turn."""
        backend = Backend.of(self.means)
        transpose, matmul = backend.xp.matrix_transpose, backend.xp.matmul
        centred = update.x - transpose(update.own[:, part])[:, :, None] * self.means[part][:, None, :]
        if update.mixed is not None:
            centred -= matmul(update.mixed[part], update.x)
        centred *= (transpose(update.y[:, part]) ** 0.5)[:, :, None]
        return backend.asarray(centred, self.sums.dtype)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays = {name: getattr(self, name) for name in ("means", "counts", "sums", "shared")}
        if self.waiting[0].shape[0]:
            arrays["waiting"], arrays["waiting_labels"] = self.waiting
        return arrays, {}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        # Means move from their initial values towards samples.
        longest = max(1.0, float((self.means**2).sum(-1).max()) ** 0.5)
        for name, own in self.state()[0].items():
            if tuple(arrays[name].shape) != tuple(own.shape):
                raise ValueError(f"{name} has shape {tuple(arrays[name].shape)}, not {tuple(own.shape)}")
            setattr(self, name, arrays[name])
        if "waiting" in arrays:
            x, y = arrays["waiting"], arrays["waiting_labels"]
            if tuple(x.shape[1:]) != self.means.shape[1:] or tuple(y.shape) != (x.shape[0], self.counts.shape[0]):
                raise ValueError(f"waiting has shape {tuple(x.shape)}, and its labels {tuple(y.shape)}")
            check_lengths("waiting", x, unit=True)
            check_range("waiting_labels", y, 0, 1)
            self.waiting = (x, y)
        check_lengths("means", self.means, longest=longest)
        check_range("counts", self.counts, 1)
        # A sum of squares, weighted by the counts, of distances between samples and means.
        xp, largest = Backend.of(self.sums).xp, 1.1 * (1 + longest) ** 2
        for extreme in (xp.min, xp.max):
            check_range("sums / counts", extreme(self.sums, axis=(1, 2)) / self.counts, -largest, largest)
        check_semidefinite("sums", self.sums)
        check_semidefinite("shared", self.shared)


class SoftStream:
    """Samples x (n, d) with soft labels y (n, K) that `SoftGaussians` learn one after the other, computed as one block.

    Within a block the K d^2 numbers of the sums S_k stay as they were before it. The means mu_k before the block and
    the samples X of the block span all later means, so after the samples 0 to e the sum of class k is

        S_k + (X - 1 mu_k^T)^T B_k (X - 1 mu_k^T),

    and with counts c_q before sample q, c = c_0, and D_q = sum over r <= q of y_r / c_r^2, all of class k,

        B[p, q] = y_p y_q (D_e - D_q - 1 / c_q) for p < q,   B[q, q] = y_q + y_q^2 (D_e - D_q),
        (B 1)[q] = y_q c (1 / c_q - (D_e - D_q)),            1^T B 1 = c^2 D_e.

    The mean over classes is then one product of all S_k with the weights of the block, and small products per sample.

    >>> import numpy as np
    >>> x, y = np.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0]]), np.array([[0.7, 0.3], [0.2, 0.8], [0.9, 0.1]])
    >>> whole, single = (SoftGaussians(np.zeros((2, 2)), 0.5, np.float64) for _ in range(2))
    >>> stream = SoftStream(whole, x, y)
    >>> moments = stream.moments(0, 3)
    >>> for row in range(3):
    ...     means, shared = moments(row)
    ...     single.learn(single.joint_update(x[row : row + 1], y[row : row + 1]))
    ...     print(np.allclose(means, single.means), np.allclose(shared, single.shared))
    True True
    True True
    True True
    >>> whole.learn(stream.update())
    >>> np.allclose(whole.sums, single.sums)
    True
    """

    def __init__(self, gaussians: SoftGaussians, x: Array, y: Array) -> None:
        xp = Backend.of(x).xp
        self._gaussians, self._x, self._y = gaussians, x, y
        self.counts = gaussians.counts + xp.concat([y[:1] * 0, xp.cumulative_sum(y, axis=0)], axis=0)
        """Counts (n + 1, K) before each sample and after the last."""

    @property
    def samples(self) -> tuple[Array, Array]:
        """Samples (n, d) and soft labels (n, K)."""
        return self._x, self._y

    def update(self) -> SoftUpdate:
        """The update by the whole block."""
        backend, xp = Backend.of(self._x), Backend.of(self._x).xp
        before, after = self._gaussians.counts, self.counts[-1]
        n = self._x.shape[0]
        earlier = xp.tril(xp.ones((n, n), dtype=xp.float64, device=backend.device), k=-1)
        mixed = None
        if n > 1:
            mixed = earlier * self._y.T[:, None, :] / self.counts[:-1].T[:, :, None]
        means = (before[:, None] * self._gaussians.means + self._y.T @ self._x) / after[:, None]
        return SoftUpdate(self._x, self._y, before / self.counts[:-1], mixed, means, after)

    def moments(self, start: int, stop: int, threads: Threads | None = None) -> Callable[[int], tuple[Array, Array]]:
        """A function that returns means (K, d) and shared covariance (d, d) after a sample from `start` to `stop` - 1.

        It can be called for several samples at the same time.
        """
        backend, xp = Backend.of(self._x), Backend.of(self._x).xp
        gaussians, x, y, counts = self._gaussians, self._x, self._y, self.counts
        d, dtype = x.shape[1], gaussians.sums.dtype
        weights, first = 1 / counts[1:], counts[0]
        narrow, sums = backend.asarray(weights[start:stop], dtype), xp.reshape(gaussians.sums, (-1, d * d))
        base = xp.empty((stop - start, d * d), dtype=dtype, device=backend.device)
        threads = threads or Threads()

        def add_up(columns: slice) -> None:
            base[:, columns] = narrow @ sums[:, columns]

        threads.map(add_up, threads.split(d * d))
        reach = xp.cumulative_sum(y / counts[:-1] ** 2, axis=0)
        near = y * (reach + 1 / counts[:-1])

        def after(last: int) -> tuple[Array, Array]:
            seen, weight = slice(0, last + 1), weights[last]
            ys = y[seen]
            weighted_means = first[:, None] * gaussians.means + ys.T @ x[seen]
            weighted = ys * weight
            # Half of B: its upper triangle and half of its diagonal. The other half is the transpose.
            half = xp.triu((weighted * reach[last]) @ ys.T - weighted @ near[seen].T, k=1)
            own = xp.sum(weighted * (1 + ys * (reach[last] - reach[seen])), axis=1)
            half += 0.5 * own[:, None] * xp.eye(last + 1, dtype=xp.float64, device=backend.device)
            along = (weighted * first * (1 / counts[seen] - reach[last] + reach[seen])) @ gaussians.means
            term = backend.asarray(half @ x[seen] - along, dtype)
            spread = backend.asarray(gaussians.means * (first * (weight * reach[last]) ** 0.5)[:, None], dtype)
            samples = backend.asarray(x[seen], dtype)
            # X^T term, its transpose, and the spread of the means in one product.
            total = xp.concat([samples, term, spread]).T @ xp.concat([term, samples, spread])
            total += xp.reshape(base[last - start], (d, d))
            total = backend.asarray(total, xp.float64)
            return weighted_means * weight[:, None], gaussians.average(total, counts[last + 1])

        return after


class SoftHead:
    """Discriminants of Gaussians with the means (K, d) and one covariance (d, d) for all classes.

    >>> import numpy as np
    >>> SoftHead(np.eye(2), np.diag([0.5, 1.0])).discriminants(np.array([[1.0, 0.0]]))
    array([[ 1. , -0.5]])
    """

    def __init__(self, means: Array, covariance: Array) -> None:
        self._whitening = Whitening(covariance)
        self._means = self._whitening.apply(means)
        self._offsets = -0.5 * Backend.of(means).xp.linalg.vecdot(self._means, self._means)

    def discriminants(self, features: Array) -> Array:
        """mu_k^T P x - 1/2 mu_k^T P mu_k, (n, K)."""
        return self._whitening.apply(features) @ self._means.T + self._offsets


BLOCK_ROWS = 32
"""Samples that are learned together; until then they wait, and the sums S_k stay as they are."""

PRESETS: Mapping[str, tuple[float, float, float]] = {
    "imagenet": (1e-4, 0.2, 0.005),
    "imagenet_a": (1e-4, 0.5, 0.02),
    "imagenet_r": (1e-4, 0.3, 0.0025),
    "imagenet_sketch": (1e-4, 0.8, 0.03),
    "imagenetv2": (1e-4, 0.1, 0.01),
    "caltech101": (2e-3, 0.3, 0.02),
    "dtd": (1e-4, 0.3, 0.02),
    "ucf101": (1e-4, 0.4, 0.02),
    "eurosat": (1e-4, 3.0, 0.05),
    "fgvc_aircraft": (1e-4, 0.2, 0.01),
    "food101": (4e-5, 0.1, 0.01),
    "oxford_flowers": (1e-4, 0.2, 0.02),
    "oxford_pets": (1e-4, 0.3, 0.02),
    "stanford_cars": (1e-4, 0.3, 0.01),
    "sun397": (1e-4, 0.2, 0.01),
}
"""The authors' epsilon, eta and rho for each of their data sets."""


class DOTA(ViewMethod):
    """Estimates a Gaussian per class from zero-shot soft labels, with the mean of their covariances shared by all, and
    adds the discriminant to the logits, with a weight that grows with the samples seen. A sample is predicted before it
    is learned from.

    Examples
    --------
    >>> import numpy as np
    >>> from zeroshift.methods import DOTA
    >>> method = DOTA(np.eye(2), logit_scale=5.0, epsilon=0.1, sigma=0.5, eta=1.0, rho=0.1, constant=0.0)
    >>> method.adapt_scores(np.array([[0.8, 0.6], [0.6, 0.8]])).round(6)
    array([[4.      , 3.      ],
           [3.068481, 4.039195]])

    Notes
    -----
    Han et al., *DOTA: Distributional Test-Time Adaptation of Vision-Language Models*, NeurIPS 2025 (arXiv 2409.19375);
    released code skylineeeeen/DOTA, commit bc67d44. The authors provide `epsilon`, `eta` and `rho` for each data set
    (`DOTA.preset("dtd")`). Scores are logits.

    The K class covariances are stored in float64 if the prototypes are float64, and otherwise in float32, as the
    authors do: 1 GB for 1000 classes in 512 dimensions. Everything else is float64. Samples wait until there are
    32, and then change the covariances together; until then their part of the mean covariance is computed exactly.
    Every sample still reads all covariances once, and a call with many samples reads them together.

    Differences from that code: with fewer than ten views one is kept, not none; nothing is cast to half precision;
    until something is learned, `predict` returns the zero-shot posterior.
    """

    name = "dota"
    headline = "Gaussians from zero-shot soft labels"
    linear = True
    protocol = "online"
    scored = "before"
    state_size = "K d^2"
    complexity = "O(K d^2 + d^3) per sample"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"epsilon": epsilon, "eta": eta, "rho": rho} for name, (epsilon, eta, rho) in PRESETS.items()
    }

    logit_scale: float = parameter(Number(low=0, above=True), "Scale of the logits; 100 for CLIP.", default=100.0)
    epsilon: float = parameter(
        Number(low=0, high=1), "Share of the identity added to the covariance before it is inverted.", default=1e-4
    )
    sigma: float = parameter(
        Number(low=0, above=True), "Initial variance of every class, which counts as one sample.", default=0.002
    )
    eta: float = parameter(Number(low=0), "Largest weight of the discriminant.", default=0.3)
    rho: float = parameter(
        Number(low=0), "Weight of the discriminant per sample seen by a class on average, up to `eta`.", default=0.02
    )
    initial_means: str = parameter(
        Choice(("constant", "text")),
        'Initial means: "constant" sets every coordinate to `constant`, as in the code of the NeurIPS version; "text" '
        "uses the prototypes, as in the first release.",
        default="constant",
    )
    constant: float = parameter(
        Number(low=-1, high=1), "Initial value of every coordinate of the means; see `initial_means`.", default=0.001
    )
    view_ratio: float = parameter(
        Number(low=0, high=1, above=True),
        "Share of the views that `adapt_views` keeps, those of lowest entropy; at least one.",
        default=RATIO,
    )

    _gaussians: SoftGaussians = state(
        lambda self: self._initial_gaussians(),
        saved_as="",
        check=lambda self, found: check_seen("the sum of counts - 1", float((self._counts - 1).sum()), self.n_seen),
    )

    check_exceptions: ClassVar[Mapping[str, str]] = {
        "axes_do_not_matter": "the means start at the same number in every coordinate, as in the authors' code",
    }

    @property
    def means(self) -> Array:
        """Class means (K, d), float64."""
        return Backend.of(self.prototypes).copy(self._moments()[0])

    @property
    def counts(self) -> Array:
        """Soft counts (K,), float64: one plus the soft labels of all samples seen."""
        return Backend.of(self.prototypes).copy(self._counts)

    @property
    def covariance(self) -> Array:
        """The mean (d, d) of the covariances of all classes, float64."""
        return Backend.of(self.prototypes).copy(self._moments()[1])

    @property
    def precision_matrix(self) -> Array:
        """Inverse (d, d) of the covariance with its share of the identity, float64."""
        covariance = self._moments()[1]
        return invert_positive(self._regularised(covariance) if self.n_seen else covariance)

    @property
    def _counts(self) -> Array:
        gaussians = self._gaussians
        return gaussians.counts + Backend.of(gaussians.counts).xp.sum(gaussians.waiting[1], axis=0)

    def _moments(self, threads: Threads | None = None) -> tuple[Array, Array]:
        """Means and shared covariance with all samples seen."""
        gaussians, waiting = self._gaussians, self._gaussians.waiting[0].shape[0]
        if not waiting:
            return gaussians.means, gaussians.shared
        return SoftStream(gaussians, *gaussians.waiting).moments(waiting - 1, waiting, threads)(waiting - 1)

    def _prepare(self) -> None:
        backend = Backend.of(self.prototypes)
        self._text = backend.asarray(self.prototypes, backend.xp.float64)

    def _initial_gaussians(self) -> SoftGaussians:
        backend = Backend.of(self.prototypes)
        means = backend.copy(self._text)
        if self.initial_means == "constant":
            means = backend.xp.full_like(means, self.constant)
        return SoftGaussians(
            means, self.sigma, backend.xp.float64 if is_double(self.prototypes) else backend.xp.float32
        )

    def _derive(self) -> None:
        means, covariance = self._moments()
        # The authors add the identity from the first update on, not before.
        covariance = self._regularised(covariance) if self.n_seen else Backend.of(covariance).copy(covariance)
        self._head = SoftHead(means, covariance)

    def _update_head(self, threads: Threads | None = None) -> None:
        means, covariance = self._moments(threads)
        self._head = SoftHead(means, self._regularised(covariance))

    def _regularised(self, covariance: Array) -> Array:
        return add_to_diagonal((1 - self.epsilon) * covariance, self.epsilon)

    def _weight(self, mean_count: float, views: int = 1) -> float:
        """Weight of the discriminant in the scores."""
        return min(self.rho * mean_count / views, self.eta)

    def _adapt_scores(self, rows: Rows) -> Iterator[tuple[slice, Array]]:
        start = 0
        while start < len(rows):
            before = self._gaussians.waiting[0].shape[0]
            block = slice(start, min(len(rows), start + BLOCK_ROWS - before))
            start, x = block.stop, rows[block]
            with own_threads(Backend.of(x).library) as threads:
                scores = self._learn_block(x, before, threads)
            yield block, scores

    def _learn_block(self, x: Array, before: int, threads: Threads) -> Array:
        """Scores (n, K) of samples that are learned together with the `before` samples that wait."""
        xp = Backend.of(x).xp
        scores = logits(x, self._text, self.logit_scale)
        waiting = zip(self._gaussians.waiting, (x, softmax(scores)), strict=True)
        stream = SoftStream(self._gaussians, *(xp.concat(parts) for parts in waiting))
        mean_counts = xp.mean(stream.counts[before:], axis=1).tolist()
        scores[0] += self._weight(mean_counts[0]) * self._head.discriminants(x[:1])[0]
        if x.shape[0] > 1:
            moments = stream.moments(before, before + x.shape[0] - 1, threads)

            def add_discriminants(row: int) -> None:
                means, covariance = moments(before + row - 1)
                head = SoftHead(means, self._regularised(covariance))
                scores[row] += self._weight(mean_counts[row]) * head.discriminants(x[row : row + 1])[0]

            threads.map(add_discriminants, range(1, x.shape[0]))
        update = stream.update() if before + x.shape[0] == BLOCK_ROWS else None
        with self._learning(x.shape[0]):
            if update is None:
                self._gaussians.waiting = stream.samples
            else:
                self._gaussians.learn(update, threads)
            self._update_head(threads)
        return scores

    def _adapt_view(self, views: Array) -> Array:
        xp = Backend.of(views).xp
        scores = logits(views, self._text, self.logit_scale)
        kept = select_lowest_entropy(scores, self.view_ratio)
        views, scores = views[kept], scores[kept]
        weight = self._weight(float(xp.mean(self._counts)), views.shape[0])
        answer = xp.mean(scores, axis=0) + weight * self._head.discriminants(xp.mean(views, axis=0)[None, :])[0]
        gaussians = self._gaussians
        with self._learning():
            if gaussians.waiting[0].shape[0]:
                gaussians.learn(SoftStream(gaussians, *gaussians.waiting).update())
            gaussians.learn(gaussians.joint_update(views, softmax(scores)))
            self._update_head()
        return answer

    def _predict_scores(self, features: Array) -> Array:
        scores = logits(features, self._text, self.logit_scale)
        if not self.n_seen:
            return scores
        weight = self._weight(float(Backend.of(features).xp.mean(self._counts)))
        return scores + weight * self._head.discriminants(features)
