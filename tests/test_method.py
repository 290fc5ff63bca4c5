"""What every method does with what it holds: copies are copies, and parameters cannot be written to."""

import copy

import numpy as np
import pytest

from zeroshift.methods import GDACLIP, TDA, TIMO
from zeroshift.testing import make_problem
from zeroshift.testing.examples import example_prompts, example_support

FEATURES, PROTOTYPES, _ = make_problem()


def test_a_copy_goes_its_own_way():
    method = TDA(PROTOTYPES, logit_scale=20.0)
    method.adapt(FEATURES[:20])
    before = method.predict(FEATURES)
    twin = copy.copy(method)
    twin.adapt(FEATURES[20:])
    np.testing.assert_array_equal(method.predict(FEATURES), before)
    assert (method.n_seen, twin.n_seen) == (20, 80)


def test_array_parameters_are_locked_and_the_callers_are_not():
    features, labels = example_support(PROTOTYPES)
    prompts = example_prompts(PROTOTYPES)
    method = TIMO(PROTOTYPES, support=(features, labels), prompts=prompts)
    for array in (method.prototypes, method.prompts, *method.support):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for array in (features, labels, prompts):
        array[...] = 0
    assert GDACLIP(PROTOTYPES, support=example_support(PROTOTYPES)).get_params()["support"][0].flags.writeable
