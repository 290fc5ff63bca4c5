"""ADAPT with several views per image: the averages, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oracle
from goldens import golden
from zeroshift import OnlineADAPT, ReleasedOnlineADAPT, ReleasedTransductiveADAPT, TransductiveADAPT
from zeroshift import views as adapt_views
from zeroshift.arrays import Backend, Rows, namespace, normalize
from zeroshift.testing import CHECKS, Case, NotApplicable, make_problem

PAPER = (OnlineADAPT, TransductiveADAPT)
RELEASED = (ReleasedOnlineADAPT, ReleasedTransductiveADAPT)
EVERY = [pytest.param(cls, id=cls.name) for cls in (*PAPER, *RELEASED)]

SCALE = 20.0


def create(cls, prototypes, **parameters):
    given = {"scale": 30.0, **parameters} if cls in RELEASED else parameters
    return cls(prototypes, **{"logit_scale": SCALE, **given})


def images_and_prototypes(n_images=60, n_views=20, *, seed=0, classes=6, dimension=16):
    """Random views around image features."""
    given = make_problem(classes, dimension, n_images, seed=seed)
    noise = np.random.default_rng(seed).normal(size=(n_images, n_views, dimension))
    views = given.features[:, None, :] + 0.2 * noise
    return views / np.linalg.norm(views, axis=2, keepdims=True), given.prototypes


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(p):
    return -(p * np.log(p)).sum(axis=-1)


def most_confident(views, prototypes, scale, ratio):
    """The most confident views of one image."""
    order = np.argsort(entropy(softmax(scale * views @ prototypes.T)), kind="stable")
    return views[order[: max(int(len(views) * ratio), 1)]]


def averaged(views, prototypes, ratio=0.1, scale=SCALE):
    return np.stack([most_confident(image, prototypes, scale, ratio).mean(axis=0) for image in views])


def plain_released_online(views, prototypes, *, scale, bank_size, alpha=0.9, ratio=0.1):
    """The released script with views, written with lists, loops and the pseudo-inverse."""
    n_classes, d = prototypes.shape
    banks = [[] for _ in range(n_classes)]
    means, similarity, scores = prototypes.copy(), np.zeros(n_classes), []
    for image in views:
        kept = most_confident(image, prototypes, SCALE, ratio)
        f = kept.mean(axis=0)
        zbar = (SCALE * kept @ prototypes.T).mean(axis=0)
        probabilities = softmax(SCALE * kept @ prototypes.T).mean(axis=0)
        h, k = entropy(probabilities), int(zbar.argmax())
        entry = (h, f, probabilities[k])
        worst = int(np.argmax([e[0] for e in banks[k]])) if banks[k] else 0
        if len(banks[k]) < bank_size or h < banks[k][worst][0]:
            if len(banks[k]) < bank_size:
                banks[k].append(entry)
            else:
                banks[k][worst] = entry
            weighted = [(p, x) for _, x, p in (*banks[k], entry)]
            mean = sum(p * x for p, x in weighted) / sum(p for p, _ in weighted)
            means[k] = alpha * mean + (1 - alpha) * prototypes[k]
            similarity = np.array([sum(p * (f @ x) for _, x, p in bank) for bank in banks])
        residuals = np.array([x - means[j] for j in range(n_classes) for _, x, _ in banks[j]])
        n = len(residuals)
        precision = np.eye(d)
        if n > 1:
            covariance = np.cov(residuals.T)
            precision = d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))
        g = means @ precision @ f - 0.5 * np.einsum("kd,de,ke->k", means, precision, means)
        total = np.log(softmax(g)) + scale / (2 * n) * similarity
        scores.append(zbar * np.exp((total - total.max()) / scale))
    return np.stack(scores), means


@pytest.mark.parametrize("bank_size", [2, 16])
def test_released_online_equals_the_plain_loop(bank_size):
    views, prototypes = images_and_prototypes(120, seed=3)
    method = create(ReleasedOnlineADAPT, prototypes, bank_size=bank_size, view_ratio=0.3)
    expected, means = plain_released_online(views, prototypes, scale=30.0, bank_size=bank_size, ratio=0.3)
    np.testing.assert_allclose(method.adapt_views_scores(views), expected, rtol=0, atol=1e-7)
    np.testing.assert_allclose(method.means, means, rtol=0, atol=1e-9)
    by_mean = softmax(SCALE * averaged(views, prototypes, 0.3) @ prototypes.T)
    by_views = [softmax(SCALE * most_confident(v, prototypes, SCALE, 0.3) @ prototypes.T).mean(axis=0) for v in views]
    assert (by_mean.argmax(axis=1) != np.argmax(by_views, axis=1)).any(), (
        "no image distinguishes the two definitions of its class"
    )


@pytest.mark.parametrize(
    ("cls", "prefix"), [(ReleasedOnlineADAPT, "online"), (ReleasedTransductiveADAPT, "trans")], ids=["online", "trans"]
)
def test_released_banks_hold_what_the_authors_code_computes(cls, prefix):
    """Banks that hold all images: class, mean feature, probability and entropy equal the authors' output."""
    given, expected = golden("problem_views"), golden("adapt_views")
    method = cls(given["prototypes"], scale=20.0, bank_size=40)
    method.adapt_views(given["views"])
    bank = method._bank
    classes = expected[f"{prefix}_pred"]
    np.testing.assert_array_equal(method.bank_counts, np.bincount(classes, minlength=12))
    for k in range(12):
        rows = np.flatnonzero(classes == k)
        # Online in order of arrival, transductive in order of confidence.
        rows = rows if prefix == "online" else rows[np.argsort(expected["trans_entropy"][rows], kind="stable")]
        held = slice(0, len(rows))
        np.testing.assert_allclose(bank.features[k, held], expected[f"{prefix}_features"][rows], atol=1e-4)
        np.testing.assert_allclose(bank.weights[k, held], expected[f"{prefix}_probs"][rows, k], atol=1e-4)
        np.testing.assert_allclose(-bank.confidences[k, held], expected[f"{prefix}_entropy"][rows], atol=1e-4)
    assert (np.linalg.norm(bank.features, axis=2).max(axis=1) < 0.999).all(), "the means were scaled to unit length"


def test_released_transductive_does_not_normalise_the_means():
    """The released equations on features that are not of unit length."""
    views, prototypes = images_and_prototypes(50)
    means_of_views = averaged(views, prototypes, 0.3)
    method = create(ReleasedTransductiveADAPT, prototypes, view_ratio=0.3, bank_size=50)
    scores = method.adapt_views_scores(views)
    logits = SCALE * means_of_views @ prototypes.T
    y = softmax(logits)
    classes, n_classes = y.argmax(axis=1), len(prototypes)
    assert set(classes) == set(range(n_classes))
    own = np.where(np.arange(n_classes) == classes[:, None], y, 0.0)  # all are in the bank, and count once more
    weights = y + own
    means = 0.9 * (weights.T @ means_of_views) / weights.sum(axis=0)[:, None] + 0.1 * prototypes
    np.testing.assert_allclose(method.means, means, rtol=0, atol=1e-10)
    covariance = np.cov((means_of_views - means[classes]).T)
    precision = 16 * np.linalg.pinv(49 * covariance + np.trace(covariance) * np.eye(16))
    g = means_of_views @ precision @ means.T - 0.5 * np.einsum("kd,de,ke->k", means, precision, means)
    total = np.log(softmax(g)) + 30.0 / (2 * 50) * means_of_views @ (own.T @ means_of_views).T
    expected = logits * np.exp((total - total.max(axis=1, keepdims=True)) / 30.0)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("engine", ["direct", "streaming", "replay", "auto"])
def test_online_equals_the_oracle_on_normalised_averages(engine):
    views, prototypes = images_and_prototypes(150, seed=1)
    features = normalize(averaged(views, prototypes, 0.25))
    parameters = {"bank_size": 4, "batch_size": 3, "prune": (40, 0.5)}
    method = create(OnlineADAPT, prototypes, engine=engine, view_ratio=0.25, **parameters)
    expected = oracle.online(features, prototypes, logit_scale=SCALE, **parameters)
    np.testing.assert_allclose(method.adapt_views(views), expected.probabilities, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(method.bank_counts, expected.bank_counts)


@pytest.mark.parametrize("iterations", [1, 3])
def test_transductive_equals_the_oracle_on_normalised_averages(iterations):
    views, prototypes = images_and_prototypes(80, seed=2)
    features = normalize(averaged(views, prototypes))
    method = create(TransductiveADAPT, prototypes, iterations=iterations)
    expected = oracle.transductive(features, prototypes, logit_scale=SCALE, bank_size=6, iterations=iterations)
    np.testing.assert_allclose(method.adapt_views(views), expected.probabilities, rtol=0, atol=1e-8)


@pytest.mark.parametrize("cls", EVERY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_view_equals_the_feature(cls, dtype):
    """Bit for bit for the paper's variants, also for float32 rows whose length is 1 only to 1e-7. Online ADAPT averages
    views in float64, so that the products of float32 rows differ."""
    given = make_problem(samples=200)
    features, prototypes = given.features.astype(dtype), given.prototypes.astype(dtype)
    answer = create(cls, prototypes).adapt_views(features[:, None, :])
    expected = create(cls, prototypes).adapt(features)
    assert answer.dtype == expected.dtype
    tolerance = 1e-5 if cls is OnlineADAPT and dtype == "float32" else 0 if cls in PAPER else 1e-9
    np.testing.assert_allclose(answer, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cls", EVERY)
def test_identical_views_equal_the_feature(cls):
    """Thirty views, of which three are averaged; also torch tensors and single images."""
    given = make_problem(samples=70)
    repeated = np.repeat(given.features[:, None, :], 30, axis=1)
    expected = create(cls, given.prototypes).adapt(given.features)
    np.testing.assert_allclose(create(cls, given.prototypes).adapt_views(repeated), expected, rtol=0, atol=1e-8)
    in_torch = create(cls, torch.tensor(given.prototypes)).adapt_views(torch.tensor(repeated))
    np.testing.assert_allclose(in_torch.numpy(), expected, rtol=0, atol=1e-8)
    one = create(cls, given.prototypes).adapt_views(torch.tensor(repeated[0]))
    assert (type(one), tuple(one.shape)) == (torch.Tensor, (6,))


@pytest.mark.parametrize("cls", EVERY)
def test_torch_equals_numpy(cls):
    views, prototypes = images_and_prototypes()
    expected = create(cls, prototypes).adapt_views_scores(views)
    scores = create(cls, torch.tensor(prototypes)).adapt_views_scores(torch.tensor(views))
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("cls", EVERY)
def test_images_are_averaged_in_blocks(cls, monkeypatch):
    views, prototypes = images_and_prototypes()
    expected = create(cls, prototypes).adapt_views(views)
    block_sizes = []
    average = adapt_views.average_views

    def counting_average(views, *arguments, **keywords):
        block_sizes.append(views.shape[0])
        return average(views, *arguments, **keywords)

    monkeypatch.setattr(adapt_views, "average_views", counting_average)
    monkeypatch.setattr("zeroshift.adapt.released.average_views", counting_average)
    monkeypatch.setattr(adapt_views, "WORK_NUMBERS", 7 * 20 * 16)
    np.testing.assert_allclose(create(cls, prototypes).adapt_views(views), expected, rtol=0, atol=1e-12)
    assert max(block_sizes) == 7


def test_averaged_rows_behave_like_features():
    """Slices, selected rows, blocks, and all rows in memory."""
    views, prototypes = images_and_prototypes()
    rows = Rows(views, Backend.of(views), np.dtype("float64"))
    expected = normalize(averaged(views, prototypes))
    averages = adapt_views.AveragedRows(rows, prototypes, SCALE, 0.1, unit=True)
    assert len(averages) == 60
    np.testing.assert_allclose(averages[5:9], expected[5:9], atol=1e-12)
    np.testing.assert_allclose(averages.take(np.array([7, 3])), expected[[7, 3]], atol=1e-12)
    np.testing.assert_allclose(averages.materialize()[:], expected, atol=1e-12)
    assert [block.stop for block, _ in averages.blocks(25, reuse=True)] == [25, 50, 60]


def test_views_that_cancel_are_replaced_by_the_most_confident_one():
    """The mean of opposite views is zero."""
    x = np.array([0.8, 0.6])
    prototypes = np.array([[1.0, 0.0], [0.6, 0.8]])
    views = np.stack([x, -x])
    method = OnlineADAPT(prototypes, logit_scale=5.0, view_ratio=1.0)
    answer = method.adapt_views(views)
    kept = most_confident(views, prototypes, 5.0, 0.5)[0]
    np.testing.assert_array_equal(answer, OnlineADAPT(prototypes, logit_scale=5.0).adapt(kept))


@pytest.mark.parametrize("cls", EVERY)
def test_an_invalid_view_is_not_learned(cls):
    views, prototypes = images_and_prototypes()
    views[40, 3] *= 2
    method = create(cls, prototypes)
    with pytest.raises(ValueError, match=r"views\[40\] row 3"):
        method.adapt_views(views)
    assert (method.n_seen, method.bank_counts.sum()) == (0, 0)
    with pytest.raises(ValueError, match="view_ratio must be a number greater than 0"):
        create(cls, prototypes, view_ratio=0.0)


SHIFTS = np.linspace(-0.5, 0.5, 12)


def views_of(features, prototypes):
    """Views that rotate and permute with features and prototypes: features shifted along the mean prototype."""
    backend = Backend.of(features)
    shift = backend.xp.asarray(SHIFTS, dtype=features.dtype, device=backend.device)[:, None]
    shared = namespace(prototypes).mean(prototypes, axis=0)
    views = features[..., None, :] + shift * backend.asarray(shared, features.dtype)
    return views / backend.xp.linalg.vector_norm(views, axis=-1, keepdims=True)


def by_views(cls):
    """The method with `adapt` replaced by `adapt_views`, to run the checks of `adapt` on it."""

    class ByViews(cls):
        def adapt(self, features):
            return self.adapt_views(views_of(features, self.prototypes))

    return ByViews


VIEW_CHECKS = (
    pytest.param("interrupted_adapt_learns_whole_samples", marks=pytest.mark.slow),
    "saved_and_continued_bit_for_bit",
    "calls_do_not_show_in_a_stream",
    "sample_order_does_not_matter_for_a_set",
    "chunks_do_not_show",
    "class_order_does_not_matter",
    "axes_do_not_matter",
    "same_inputs_same_bits",
    "torch_state_is_saved_and_loaded",
)

CASES = [
    (OnlineADAPT, {}),
    (OnlineADAPT, {"batch_size": 4}),
    (TransductiveADAPT, {"iterations": 2}),
    (ReleasedOnlineADAPT, {}),
    (ReleasedTransductiveADAPT, {}),
]


@pytest.mark.parametrize("check", VIEW_CHECKS)
@pytest.mark.parametrize(("cls", "parameters"), CASES, ids=[f"{c.name}-{'-'.join(p) or 'default'}" for c, p in CASES])
def test_views_pass_the_checks_of_features(cls, parameters, check):
    try:
        CHECKS[check](Case(by_views(cls), {"view_ratio": 0.3, **parameters}))
    except NotApplicable as reason:
        pytest.skip(str(reason))
