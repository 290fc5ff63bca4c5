"""The data sets ADAPT is evaluated on, read from local folders; nothing is downloaded.

>>> from zeroshift.data import catalogue
>>> [info.id for info in catalogue.list()][:3]
['imagenet', 'imagenet_a', 'imagenet_r']
>>> catalogue.get("pets").title
'Oxford-IIIT Pets'
"""

from zeroshift.data.catalogue.data_sets import DataSetInfo
from zeroshift.data.catalogue.loading import CountWarning, get, list, load
from zeroshift.data.catalogue.status import DataSetStatus, check

__all__ = ["CountWarning", "DataSetInfo", "DataSetStatus", "check", "get", "list", "load"]
