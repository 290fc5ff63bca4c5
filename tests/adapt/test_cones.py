"""Cones: where they rule out negative cosines, the bank term is the plain product."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroshift.adapt import bank_term_bounds as bounds
from zeroshift.adapt.bank_term_bounds import add_excess
from zeroshift.adapt.statistics import bank_term


class TestCones:
    def banks(self, seed, spread):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(6, 5, 4)) * spread + rng.normal(size=4)
        features /= np.linalg.norm(features, axis=-1, keepdims=True)
        occupied = (np.arange(5) < rng.integers(0, 6, size=6)[:, None]).astype(float)
        features *= occupied[..., None]
        weights = rng.uniform(0.2, 1.0, size=(6, 5)) * occupied
        x = rng.normal(size=(40, 4)) * spread + features.sum(axis=(0, 1)) / 10
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return features, occupied, weights, x, rng

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 10_000), st.sampled_from([0.1, 0.4, 1.0, 5.0]), st.booleans())
    def test_certain_pairs_need_no_excess(self, seed, spread, any_direction):
        """For any direction; a good one only leaves fewer pairs uncertain."""
        features, occupied, weights, x, rng = self.banks(seed, spread)
        sums, totals = np.einsum("kmd,km->kd", features, weights), weights.sum(axis=1)
        m = bounds.shared_direction(sums)
        if any_direction:
            m = rng.normal(size=4)
            m /= np.linalg.norm(m)
        cones = bounds.fit_cones(features, occupied, sums, totals, m)
        term, exact = x @ sums.T, bank_term(x, features, weights)
        uncertain = bounds.uncertain_pairs(term, x, m, cones, totals)
        np.testing.assert_allclose(term[~uncertain], exact[~uncertain], atol=1e-12)
        add_excess(term, x, features, weights, uncertain)
        np.testing.assert_allclose(term, exact, atol=1e-12)

    def test_a_narrow_cone_leaves_nothing_uncertain(self):
        features, occupied, weights, _, _ = self.banks(3, 0.1)
        sums, totals = np.einsum("kmd,km->kd", features, weights), weights.sum(axis=1)
        m = bounds.shared_direction(sums)
        x = features[occupied > 0]
        uncertain = bounds.uncertain_pairs(
            x @ sums.T, x, m, bounds.fit_cones(features, occupied, sums, totals, m), totals
        )
        assert not uncertain.any()

    @pytest.mark.parametrize("count", [0, 1, 3, 200])
    @pytest.mark.parametrize("rows", [1, 40])
    @pytest.mark.parametrize("library", ["numpy", "torch"])
    def test_excess_for_any_number_of_uncertain_pairs(self, count, rows, library):
        features, _, weights, x, rng = self.banks(4, 1.0)
        x = x[:rows]
        uncertain = np.zeros((rows, 6), dtype=bool)
        uncertain.flat[rng.permutation(uncertain.size)[:count]] = True
        plain = x @ np.einsum("kmd,km->kd", features, weights).T
        arguments = [plain.copy(), x, features, weights, uncertain]
        if library == "torch":
            torch = pytest.importorskip("torch", reason="torch is not installed")
            arguments = [torch.tensor(argument) for argument in arguments]
        add_excess(*arguments)
        exact = bank_term(x, features, weights)
        np.testing.assert_allclose(np.asarray(arguments[0])[uncertain], exact[uncertain], atol=1e-12)

    def test_empty_banks_have_no_direction_and_no_uncertain_pairs(self):
        nothing = np.zeros((3, 2, 4))
        m = bounds.shared_direction(nothing[:, 0])
        cones = bounds.fit_cones(nothing, nothing[..., 0], nothing[:, 0], np.zeros(3), m)
        x = np.eye(2, 4)
        assert not bounds.uncertain_pairs(np.zeros((2, 3)), x, m, cones, np.zeros(3)).any()
        assert np.isfinite(cones.across).all()
