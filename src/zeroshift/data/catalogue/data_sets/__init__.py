"""The sixteen data sets ADAPT is measured on: what each is, and where it may lie."""

from zeroshift.data.catalogue.data_sets.fine_grained import FINE_GRAINED
from zeroshift.data.catalogue.data_sets.imagenet import IMAGENET_FAMILY
from zeroshift.data.catalogue.data_sets.info import DataSetInfo, Layout

__all__ = ["DATA_SETS", "DataSetInfo", "Layout"]

DATA_SETS = (*IMAGENET_FAMILY, *FINE_GRAINED)
