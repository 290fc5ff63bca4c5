"""What methods need, what sources offer, and the arguments that follow."""

import numpy as np
import pytest

from zeroshift import FeatureSet, methods
from zeroshift.methods.inputs import (
    feature_source,
    image_input,
    method_inputs,
    missing_input,
    resolve_inputs,
    starts_from_prompt,
    unaccepted_input,
)

HINTS = {"support": "--support FILE", "any setting": "--set {name}=VALUE", "any other input": "not here"}


@pytest.fixture
def features():
    rows = np.eye(4)[[0, 1, 2, 3, 0, 1]]
    prototypes = {"first": np.eye(4), "second": np.eye(4)[::-1]}
    return FeatureSet(rows, prototypes=prototypes, labels=[0, 1, 2, 3, 0, 1], logit_scale=7.0)


@pytest.mark.parametrize("info", methods.list_methods(), ids=lambda info: info.name)
def test_every_need_is_required_and_nothing_is_both(info):
    inputs = method_inputs(info)
    assert set(info.needs) - {"prototypes"} <= set(inputs.required)
    assert not set(inputs.required) & set(inputs.optional)
    assert set(inputs.settings) <= set(inputs.required)
    assert missing_input(info, inputs.required) is None
    assert (missing_input(info, []) is None) == (inputs.required == ())


@pytest.mark.parametrize(
    ("name", "required", "optional", "settings"),
    [
        ("zero_shot", (), (), ()),
        ("adapt_released_online", ("scale",), ("views",), ("scale",)),
        ("timo", ("prompts", "support"), ("validation",), ()),
        ("tpt", ("views", "text"), (), ()),
        ("b2tpt", ("text",), ("vision",), ()),
    ],
)
def test_inputs_follow_from_the_declaration(name, required, optional, settings):
    inputs = method_inputs(methods.get(name))
    assert (inputs.required, inputs.optional, inputs.settings) == (required, optional, settings)


@pytest.mark.parametrize(
    ("name", "available", "requested", "message"),
    [
        ("tip_adapter", [], [], "needs labelled samples (support). Fix: --support FILE"),
        ("transclip", ["validation"], ["validation"], "needs labelled samples (support). Fix: --support FILE"),
        ("adapt_online", [], ["views"], "needs several views of each image. Fix: not here"),
        ("adapt_released_online", [], [], "which has no default. Fix: --set scale=VALUE"),
        ("dpcore", ["source"], [], "needs the images themselves, not their features. Fix: not here"),
        ("promptalign", [], [], "needs the images themselves, not their features. Fix: not here"),
        ("selftpt", [], [], "needs source (arrays), which has no default. Fix: not here"),
    ],
)
def test_the_first_missing_input_is_named_with_the_fix(name, available, requested, message):
    found = missing_input(methods.get(name), available, requested=requested, hints=HINTS)
    assert found.startswith("needs ")
    assert found.endswith(message)


def test_inputs_a_method_does_not_take():
    info = methods.get("tda")
    assert unaccepted_input(info, "views") is None
    assert unaccepted_input(info, "support") == "tda takes no support. It takes views."
    assert unaccepted_input(info, "view") == "tda takes no view. Did you mean 'views'? It takes views."
    assert unaccepted_input(methods.get("zero_shot"), "text") == "zero_shot takes no encoder. It takes features alone."


def test_arguments_come_from_the_source_and_parameters_take_precedence(features):
    support = (features.features[:4], features.labels[:4])
    source = {**feature_source(features, "second"), "support": lambda: support}
    arguments = resolve_inputs(methods.get("timo"), {}, source)
    assert set(arguments) == {"prototypes", "prompts", "support"}
    np.testing.assert_array_equal(arguments["prototypes"], features.prototypes_for("second"))
    assert arguments["prompts"].shape == (4, 2, 4)
    info = methods.get("gda_clip")
    assert resolve_inputs(info, {}, source)["logit_scale"] == 7.0
    assert resolve_inputs(info, {"logit_scale": 3.0}, source)["logit_scale"] == 3.0


def test_optional_inputs_are_made_only_on_request(features):
    def fails():
        pytest.fail("made without need")

    info, source = methods.get("adapt_online"), {**feature_source(features), "support": fails, "text": fails}
    assert "support" not in resolve_inputs(info, {}, source)
    source["support"] = lambda: "labelled"
    assert resolve_inputs(info, {}, source, requested=["support"])["support"] == "labelled"
    with pytest.raises(TypeError, match=r"^tip_adapter needs labelled samples \(support\)\. Fix: --support FILE\.$"):
        resolve_inputs(methods.get("tip_adapter"), {}, feature_source(features), hints=HINTS)


@pytest.mark.parametrize("name", ["tpt", "batclip"])
def test_a_method_with_its_own_prompt_starts_from_its_text(features, name):
    class Text:
        context, n_classes = np.ones(2), 4

        def features(self, context):
            return np.eye(4)[::-1] * context[0]

    info = methods.get(name)
    assert starts_from_prompt(info)
    source = {**feature_source(features), "text": Text, "vision": lambda: None}
    arguments = resolve_inputs(info, {}, source)
    np.testing.assert_array_equal(arguments["prototypes"], np.eye(4)[::-1])
    given = resolve_inputs(info, {"prototypes": "mine"}, source)
    assert given["prototypes"] == "mine"


def test_views_are_given_where_they_are_needed_or_requested(features):
    seen = FeatureSet(
        features.features, prototypes=features.prototypes, labels=features.labels,
        views=np.repeat(features.features[:, None], 3, axis=1),
    )  # fmt: skip
    shapes = {name: image_input(methods.get(name), seen).ndim for name in ("zero_shot", "tda", "mta")}
    assert shapes == {"zero_shot": 2, "tda": 2, "mta": 3}
    assert image_input(methods.get("tda"), seen, views=True).ndim == 3
    assert image_input(methods.get("zero_shot"), seen, views=True).ndim == 2
    for name, views in (("mta", False), ("tda", True)):
        with pytest.raises(ValueError, match=rf"^{name} needs several views of each image\. Fix: zeroshift extract"):
            image_input(methods.get(name), features, views=views)
