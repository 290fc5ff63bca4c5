"""Features, prototypes, labels and class names of one data set, checked, and their files."""

from zeroshift.features.feature_set import FeatureSet

__all__ = ["FeatureSet"]
