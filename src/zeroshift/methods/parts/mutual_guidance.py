"""How TIMO lets images weigh the prompts of a class, and prompts join its images."""

from __future__ import annotations

import numpy as np

from zeroshift.arrays import Array, Home, namespace, to_numpy
from zeroshift.labelled import Labelled
from zeroshift.methods.parts.class_groups import ClassGroups
from zeroshift.methods.parts.rows import unit_rows
from zeroshift.zero_shot import softmax

__all__ = ["guided_text", "join_prompts", "matching_scores"]


def matching_scores(prompts: Array, support: Labelled) -> Array:
    """Cosines (K, P) between the prompts (K, P, d) and the mean image of their class.

    A class without samples is matched with the mean of the other classes' mean images.

    >>> matching_scores(np.eye(2)[:, None, :], (np.array([[0.8, 0.6], [0.6, 0.8]]), np.array([0, 1])))
    array([[0.8],
           [0.8]])
    """
    features, labels = support
    home = Home.of(prompts)
    groups = ClassGroups(labels, prompts.shape[0])
    anchors = unit_rows(groups.means(home.bring(features[home.index(groups.order)], prompts.dtype)))
    present = home.index(np.flatnonzero(groups.counts))
    average = unit_rows(home.xp.mean(anchors[present], axis=0))
    anchors[home.index(np.flatnonzero(groups.counts == 0))] = average
    return home.xp.matmul(prompts, anchors[:, :, None])[:, :, 0]


def guided_text(prompts: Array, matching: Array, gamma: float) -> Array:
    """One unit text weight a class (K, d): its prompts, weighted by the softmax of their matching scores.

    The scores of a class are first divided by their length, then multiplied by `gamma`.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> guided_text(prompts, np.array([[0.3, 0.4]]), gamma=1.0).round(6)
    array([[0.633492, 0.773749]])
    """
    weights = softmax(gamma * unit_rows(matching))
    return unit_rows(namespace(prompts).matmul(weights[:, None, :], prompts)[:, 0, :])


def join_prompts(prompts: Array, matching: Array, count: int, support: Labelled) -> Labelled:
    """The support samples with `count` prompts a class before them, best match first, each as long as its score.

    After the last prompt the best comes again.

    >>> prompts = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    >>> features, labels = join_prompts(prompts, np.array([[0.3, 0.4]]), 3, (np.array([[0.8, 0.6]]), np.array([0])))
    >>> features
    array([[0. , 0.4],
           [0.3, 0. ],
           [0. , 0.4],
           [0.8, 0.6]])
    """
    home = Home.of(prompts)
    classes, available, d = prompts.shape
    ranked = np.argsort(-to_numpy(matching), axis=1, kind="stable")
    picked = ranked[:, np.arange(count) % available]
    places = home.index((np.arange(classes)[:, None] * available + picked).reshape(-1))
    scaled = prompts.reshape(-1, d)[places] * matching.reshape(-1)[places][:, None]
    features, labels = support
    joined = home.xp.concat([scaled, home.bring(features, prompts.dtype)], axis=0)
    return joined, np.concatenate([np.repeat(np.arange(classes), count), labels])
