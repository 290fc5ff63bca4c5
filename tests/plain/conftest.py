"""The golden problem as tensors."""

import pytest
import torch

from goldens import first_shots, problem, views


class Problem:
    """The golden problem as tensors of one precision."""

    def __init__(self, dtype):
        self.dtype = dtype
        arrays = {key: torch.from_numpy(array) for key, array in problem(dtype).items() if array.ndim}
        self.x, self.t, self.prompts = arrays["features"], arrays["prototypes"], arrays["prompts"]
        self.labels, self.unlabelled = arrays["labels"], arrays["unlabeled_features"]
        self.support = arrays["support_features"], arrays["support_labels"]
        self.validation = arrays["val_features"], arrays["val_labels"]
        self.views, self.views_t = (torch.from_numpy(views(dtype)[key]) for key in ("views", "prototypes"))

    def shots(self, count):
        features, labels = first_shots(count, self.dtype)
        return torch.from_numpy(features), torch.from_numpy(labels)

    def rows(self, index):
        return self.support[0][index], self.support[1][index]


@pytest.fixture(params=["float32", pytest.param("float64", marks=pytest.mark.slow)])
def given(request):
    return Problem(request.param)
