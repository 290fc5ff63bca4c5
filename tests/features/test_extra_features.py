"""Extra features of the same images from other encoders: stored, subset, combined, saved, and refused."""

from __future__ import annotations

import numpy as np
import pytest

from feature_sets import assert_same, small, unit, write_npz
from zeroshift.evaluate.keys import features_digest
from zeroshift.evaluate.streams import stack_datasets
from zeroshift.features import FeatureSet
from zeroshift.files import FileFormatError

OTHER, THIRD = unit(6, 5, seed=7), unit(6, 2, seed=8, dtype="float16")


def with_both(**changes) -> FeatureSet:
    return small(extra={"vit": THIRD, "dinov2": OTHER}, **changes)


class TestStored:
    def test_are_optional(self):
        assert small().extra == {}
        assert "extra" not in repr(small())
        assert small().summary()["extra"] == {}

    def test_by_name_in_the_order_of_the_names(self):
        made = with_both()
        assert list(made.extra) == ["dinov2", "vit"]
        np.testing.assert_array_equal(made.extra["dinov2"], OTHER)
        assert made.extra["vit"].dtype == np.float16
        assert "extra: dinov2, vit" in repr(made)
        assert made.summary()["extra"] == {"dinov2": 5, "vit": 2}

    def test_are_read_only_and_not_copied(self):
        given = OTHER.copy()
        made = small(extra={"dinov2": given})
        assert np.shares_memory(made.extra["dinov2"], given)
        with pytest.raises(ValueError, match="read-only"):
            made.extra["dinov2"][0, 0] = 1

    def test_tensors_are_accepted(self):
        torch = pytest.importorskip("torch")
        made = small(extra={"dinov2": torch.from_numpy(OTHER)})
        np.testing.assert_array_equal(made.extra["dinov2"], OTHER)

    @pytest.mark.parametrize("rows", [[3, 0, 3], slice(1, 6, 2), np.arange(6) > 3, [-1]])
    def test_follow_the_rows_of_a_subset(self, rows):
        chosen = with_both().subset(rows)
        np.testing.assert_array_equal(chosen.extra["dinov2"], OTHER[rows])
        np.testing.assert_array_equal(chosen.extra["vit"], THIRD[rows])

    def test_a_slice_shares_memory(self):
        made = with_both()
        assert np.shares_memory(made.subset(slice(2, 4)).extra["vit"], made.extra["vit"])

    def test_sets_stacked_keep_what_all_have(self):
        one = with_both()
        other = small(extra={"dinov2": OTHER[::-1], "vit": unit(6, 3)})  # vit has another dimension there
        stacked = stack_datasets([one, other])
        assert list(stacked.extra) == ["dinov2"]
        np.testing.assert_array_equal(stacked.extra["dinov2"], np.concatenate([OTHER, OTHER[::-1]]))


class TestRefused:
    @pytest.mark.parametrize(
        ("extra", "error", "message"),
        [
            (OTHER, TypeError, "extra must be a mapping from names to arrays; got ndarray"),
            ({"a": OTHER[:5]}, ValueError, r"extra\['a'\] has 5 rows, but features has 6.*Fix: encode the same images"),
            ({"a": 2 * OTHER}, ValueError, r"extra\['a'\].* has length 2.*Fix: "),
            ({"a": OTHER[0]}, ValueError, r"extra\['a'\] must have two dimensions"),
            ({"a": np.full((6, 2), np.nan)}, ValueError, r"extra\['a'\].*NaN"),
            ({7: OTHER}, TypeError, "must be a string; got 7"),
            ({"": OTHER}, ValueError, "must be 1 to 100 letters.*got ''. Fix: 'second'"),
            ({"facebook/dinov2": OTHER}, ValueError, "got 'facebook/dinov2'. Fix: 'facebook-dinov2'"),
            ({"-a": OTHER}, ValueError, "the first a letter or digit; got '-a'. Fix: 'a'"),
            ({"ü": OTHER}, ValueError, "Fix: 'second'"),
            ({"a" * 101: OTHER}, ValueError, "1 to 100"),
            ({"a\n": OTHER}, ValueError, "got 'a"),
        ],
    )
    def test_arguments(self, extra, error, message):
        with pytest.raises(error, match=message):
            small(extra=extra)


class TestWithExtra:
    def test_a_new_set_is_made(self):
        first = small(provenance={"title": "pets"})
        both = first.with_extra("dinov2", OTHER, {"encoder": "facebook/dinov2-base"})
        assert first.extra == {}
        assert first.provenance == {"title": "pets"}
        assert both.provenance == {"title": "pets", "extra": {"dinov2": {"encoder": "facebook/dinov2-base"}}}
        third = both.with_extra("vit", THIRD)
        assert list(third.extra) == ["dinov2", "vit"]
        assert third.provenance == both.provenance
        assert_same(third, with_both(provenance=both.provenance))

    def test_a_name_twice_is_refused(self):
        with pytest.raises(ValueError, match=r"already has extra features called 'dinov2'. Fix: another name"):
            with_both().with_extra("dinov2", OTHER)

    def test_another_set_of_the_same_images(self):
        other = FeatureSet(OTHER, prototypes=unit(3, 5), labels=small().labels, provenance={"title": "other"})
        both = small().with_extra("other", other)
        np.testing.assert_array_equal(both.extra["other"], OTHER)
        assert both.provenance["extra"]["other"] == {"title": "other"}

    def test_classes_in_another_order_are_the_same_classes(self):
        names, labels = ("a", "b", "c"), np.array([0, 1, 2, 0, 1, 2])
        first = small(class_names=names)
        turned = FeatureSet(OTHER, prototypes=unit(3, 5), labels=2 - labels, class_names=names[::-1])
        assert "other" in first.with_extra("other", turned).extra
        wrong = FeatureSet(OTHER, prototypes=unit(3, 5), labels=labels, class_names=names[::-1])
        with pytest.raises(ValueError, match=r"other labels than this set \(4 of 6 differ, the first in row 0\)"):
            first.with_extra("other", wrong)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"labels": [0, 1, 2, 0, 2, 2]},
                r"other labels than this set \(1 of 6 differ, the first in row 4\).*Fix: ",
            ),
            ({"sample_names": list("abcdeg")}, "calls sample 5 'g', this set 'f'.*Fix: "),
        ],
    )
    def test_other_images_are_refused(self, changes, message):
        other = FeatureSet(OTHER, **{"prototypes": unit(3, 5), **changes})
        with pytest.raises(ValueError, match=message):
            small(sample_names=list("abcdef")).with_extra("other", other)

    def test_another_number_of_samples_is_refused(self):
        other = FeatureSet(OTHER[:4], prototypes=unit(3, 5))
        with pytest.raises(ValueError, match=r"'other' has 4 samples, but this set has 6.*Fix: extract both"):
            small().with_extra("other", other)

    def test_unlabelled_and_unnamed_sets_match_any(self):
        other = FeatureSet(OTHER, prototypes=unit(3, 5))
        assert "other" in small(sample_names=list("abcdef")).with_extra("other", other).extra


class TestDigest:
    def test_of_sets_without_extra_is_as_before(self):
        # The digest that was computed before extra features existed: records of earlier runs stay valid.
        made = FeatureSet(np.eye(2), prototypes=np.eye(2), labels=[0, 1])
        assert features_digest(made) == "4ca385f65bea2a42113f9d9c07e7beb5"

    def test_depends_on_extra_features(self):
        assert len({features_digest(one) for one in (small(), with_both(), small(extra={"a": OTHER}))}) == 3
        assert features_digest(small(extra={"a": OTHER})) != features_digest(small(extra={"b": OTHER}))


class TestFiles:
    def test_safetensors(self, tmp_path):
        path = tmp_path / "set.safetensors"
        made = with_both(provenance={"x": 1}, sample_names=list("abcdef"))
        made.save(path)
        assert_same(made, FeatureSet.load(path))

    def test_damage_is_detected(self, tmp_path):
        path = tmp_path / "set.safetensors"
        with_both().save(path)
        content = path.read_bytes()
        where = content.index(np.ascontiguousarray(OTHER).tobytes())
        path.write_bytes(content[: where + 2] + bytes([content[where + 2] ^ 1]) + content[where + 3 :])
        with pytest.raises(FileFormatError, match="the array 'extra_features_dinov2' does not have the checksum"):
            FeatureSet.load(path)

    def test_npz(self, tmp_path):
        path = write_npz(tmp_path / "set.npz", extra_features_vit=THIRD, extra_info=np.zeros(3))
        loaded = FeatureSet.load(path)
        assert list(loaded.extra) == ["vit"]
        np.testing.assert_array_equal(loaded.extra["vit"], THIRD)

    def test_npz_with_another_number_of_rows(self, tmp_path):
        path = write_npz(tmp_path / "set.npz", extra_features_vit=THIRD[:3])
        with pytest.raises(FileFormatError, match=r"set\.npz: extra\['vit'\] has 3 rows, but features has 6"):
            FeatureSet.load(path)

    def test_npy_stays_on_disk(self, npy):
        rows = unit(200, 7)
        np.save(npy / "dinov2.npy", rows)
        loaded = FeatureSet.load(
            npy / "features.npy", prototypes=npy / "prototypes.npy", extra={"dinov2": npy / "dinov2.npy"}
        )
        assert isinstance(loaded.extra["dinov2"].base, np.memmap)
        np.testing.assert_array_equal(loaded.extra["dinov2"], rows)

    def test_npy_next_to_an_npz(self, tmp_path):
        path = write_npz(tmp_path / "set.npz", extra_features_vit=THIRD)
        np.save(tmp_path / "dinov2.npy", OTHER)
        loaded = FeatureSet.load(path, extra={"dinov2": tmp_path / "dinov2.npy"})
        assert list(loaded.extra) == ["dinov2", "vit"]
        with pytest.raises(ValueError, match=r"extra\['vit'\] cannot be passed with set.npz"):
            FeatureSet.load(path, extra={"vit": tmp_path / "dinov2.npy"})
        with pytest.raises(TypeError, match="extra must be a mapping from names to paths"):
            FeatureSet.load(path, extra=tmp_path / "dinov2.npy")

    def test_rows_are_scaled_on_request(self, tmp_path):
        path = write_npz(tmp_path / "set.npz", extra_features_vit=3 * OTHER)
        with pytest.raises(FileFormatError, match=r"extra\['vit'\].*length 3"):
            FeatureSet.load(path)
        np.testing.assert_allclose(FeatureSet.load(path, normalize=True).extra["vit"], OTHER, atol=1e-6)
