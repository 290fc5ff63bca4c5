"""The drawing of real features: its plane is exact for zero-shot, its numbers are those of the methods."""

import re

import numpy as np
import pytest

from report.conftest import compared, made
from zeroshift import FeatureSet, normalize
from zeroshift.data import packs
from zeroshift.report.feature_cloud import CLASS_COLOURS, cloud_after, cloud_before, cloud_figure, cloud_of
from zeroshift.report.style import inline_svg


@pytest.fixture(scope="module", params=["adapt_transductive", "anchored_mixture_transductive"])
def cloud(request):
    return cloud_of(compared(packs.load("cifar10"), "cifar10"), request.param)


def test_zero_shot_is_exact_in_the_plane(cloud):
    assert np.array_equal((cloud.samples @ cloud.prototypes.T).argmax(axis=1), cloud.before)


def test_the_classes_are_those_between_which_most_labels_move_and_the_numbers_are_the_drawn_ones(cloud):
    assert cloud.class_names == ("cat", "deer", "horse")
    before, after = cloud.accuracies
    assert len(cloud.labels) == 466
    assert after > before + 0.05
    assert f"({100 * before:.1f}% right)" in cloud.caption
    assert f"({100 * after:.1f}% right)" in cloud.caption
    assert f"{np.sum(cloud.before != cloud.after)} of 466 labels change" in cloud.headline
    assert 0.8 < cloud.agreement < 1


def test_every_sample_is_drawn_and_every_region_is_filled(cloud):
    for draw, predicted in ((cloud_before, cloud.before), (cloud_after, cloud.after)):
        (axes,) = draw(cloud).axes
        dots = [line for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata()) > 1]
        assert sum(len(line.get_xdata()) for line in dots) == len(cloud.labels)
        wrong = [line for line in dots if line.get_marker() == "X"]
        assert sum(len(line.get_xdata()) for line in wrong) == np.sum(predicted != cloud.labels)


def test_regions_cover_the_picture_without_overlap(cloud):
    for draw in (cloud_before, cloud_after):
        (axes,) = draw(cloud).axes
        regions = [patch.get_xy() for patch in axes.patches if hasattr(patch, "get_xy") and len(patch.get_xy()) > 2]
        area = sum(abs(np.sum(xy[:-1, 0] * xy[1:, 1] - xy[1:, 0] * xy[:-1, 1])) / 2 for xy in regions)
        width, height = np.ptp(axes.get_xlim()), np.ptp(axes.get_ylim())
        assert area == pytest.approx(width * height)


def test_the_svg_names_every_class_and_has_its_colours(cloud):
    text = inline_svg(cloud_before(cloud), name="cloud")
    for name, colour in zip(cloud.class_names, CLASS_COLOURS, strict=False):
        assert re.search(rf">text: {name}<", text)
        assert colour in text
    assert len(cloud_figure(cloud).axes) == 2


def test_a_set_without_labels_or_with_two_classes_has_no_cloud():
    features = made(3, off=0.35, title="A")
    unlabelled = FeatureSet(features.features, prototypes=features.prototypes, class_names=features.class_names)
    assert cloud_of(compared(unlabelled, "a"), "adapt_transductive") is None
    two = FeatureSet(np.eye(2), prototypes=np.eye(2), class_names=["a", "b"], labels=np.array([0, 1]), logit_scale=20.0)
    assert cloud_of(compared(two, "a"), "adapt_transductive") is None


def test_prototypes_on_a_line_have_no_plane():
    prototypes = normalize(np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    x = normalize(np.random.default_rng(0).normal(size=(30, 3)))
    names, labels = ["a", "b", "c"], np.arange(30) % 3
    features = FeatureSet(x, prototypes=prototypes, class_names=names, labels=labels, logit_scale=20.0)
    assert cloud_of(compared(features, "a"), "adapt_transductive") is None
