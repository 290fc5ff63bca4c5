"""What `zeroshift adapt` and `zeroshift classify` report in the same words: the classifier that was used, its accuracy,
and a warning where its probabilities mislead."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zeroshift.cli._method_options import DEFAULT_METHODS, same_prototypes
from zeroshift.evaluate import Comparison
from zeroshift.features.checks import UNNAMED_PROMPT
from zeroshift.method import Method
from zeroshift.reject import DOUBTFUL_ABOVE, FIRST, Rejects, rejected_label
from zeroshift.report.comparisons import comparison_record
from zeroshift.report.formatting import counted, method_label, percent, points

__all__ = ["PredictionSummary", "format_scale"]

WRITTEN_AS_ONE = 1 - 5e-7
"""Least probability that six significant digits round to 1."""


@dataclass(frozen=True)
class PredictionSummary:
    """A method and its zero-shot baseline on one set, as entries of a table and of a record."""

    comparison: Comparison
    """Zero-shot first, the method last."""
    method: Method
    out: Path
    """Where the predictions were written."""
    rejects: Rejects
    prompt: str | None = None
    """Prompt mode that was asked for; None for the set's default."""
    own_prompt: str | None = None
    """The words of the prompt that the method starts from, instead of a prompt mode of the set; None if it does not."""
    scale_assumed: bool = False
    """Whether neither the set nor the user gave the logit scale."""
    second: str | None = None
    """Name of the set's extra features that the method was given; None without a second encoder."""

    @property
    def logit_scale(self) -> float:
        return float(getattr(self.method, "logit_scale", self.comparison.features.logit_scale))

    @property
    def used_prompt(self) -> str | None:
        """The prompt mode whose prototypes the method has; None if they come from elsewhere, such as a saved state."""
        features = self.comparison.features
        modes = dict.fromkeys([self.prompt or features.default_prompt, *features.prompts])
        prototypes = np.asarray(self.method.prototypes)
        return next((mode for mode in modes if same_prototypes(prototypes, features.prototypes_for(mode))), None)

    def counts(self) -> dict[str, int]:
        """Samples per predicted class, without the rejected ones."""
        found = Counter(self.comparison.results[-1].predictions[~self.rejects.rejected].tolist())
        return {name: found[k] for k, name in enumerate(self.comparison.features.class_names)}

    @property
    def rejected_label(self) -> str:
        """What rejected samples are called."""
        return rejected_label(self.comparison.features.class_names)

    def warnings(self) -> list[str]:
        """Sentences about results that are easily misread."""
        if not self.method.overconfident:
            return []
        probabilities = self.comparison.results[-1].run.probabilities.max(axis=1)
        ones = int(np.count_nonzero(probabilities >= WRITTEN_AS_ONE))
        instead = DEFAULT_METHODS["transductive" if self.method.protocol == "transductive" else "online"]
        return [
            f"probabilities of {self.method.name} are over-confident ({ones:,} of {len(probabilities):,} are written "
            f"as 1): use them only to rank classes, or use --method {instead}"
        ]

    def record(self) -> dict[str, Any]:
        record = comparison_record(self.comparison)
        zero_shot, adapted = record.pop("methods")
        features = self.comparison.features
        return {
            "source": record.pop("name"),
            **record,
            "class_names": list(features.class_names),
            "encoder": features.provenance.get("encoder"),
            "prompt": self.own_prompt or self.used_prompt,
            "logit_scale": self.logit_scale,
            "logit_scale_assumed": self.scale_assumed,
            **adapted,
            "zero_shot_accuracy": zero_shot["accuracy"],
            "counts": self.counts(),
            "rejected": self.rejects.count,
            "rejected_label": self.rejected_label,
            "doubtful": self.rejects.doubtful,
            "doubtful_above": DOUBTFUL_ABOVE,
            "reject_above": self.rejects.above,
            "reject_cut": self.rejects.rule.cut,
            "reject_typical": self.rejects.rule.typical,
            "warnings": self.warnings(),
            "out": str(self.out),
        }

    def classifier_entries(self) -> dict[str, str]:
        """Method, logit scale and, where it is known, the prompt."""
        name = self.method.name
        label = method_label(name)
        if self.own_prompt is not None:
            prompt = f'"{self.own_prompt}", the method\'s own'
        else:
            prompt = self.used_prompt or "none of the set's; the prototypes are those of the saved state"
        known = {} if prompt == UNNAMED_PROMPT else {"prompt": prompt}
        return {
            "method": name if label == name else f"{label} ({name})",
            **known,
            "logit scale": format_scale(self.logit_scale, assumed=self.scale_assumed),
            **self._second_entry(),
        }

    def _second_entry(self) -> dict[str, str]:
        if self.second is None:
            return {}
        return {"second encoder": f"{self.second}, d = {self.comparison.features.extra[self.second].shape[1]}"}

    def result_entries(self, label_source: str = "") -> dict[str, str]:
        """Accuracies, if there are labels, and how many predictions changed; `label_source` follows the accuracy."""
        result, entries = self.comparison.results[-1], {}
        if result.accuracy is not None:
            entries["accuracy"] = f"{percent(result.accuracy)}%{label_source}"
            entries["zero-shot"] = f"{percent(self.comparison.baseline.accuracy)}%"
            entries["gain"] = f"{points(self.comparison.gain(result))} points"
        n_samples = self.comparison.features.n_samples
        entries["changed"] = f"{self.comparison.changed(result):,} of {n_samples:,} predictions differ from zero-shot"
        if self.rejects.above < 1:
            rejected = f"{self.rejects.count:,} of {n_samples:,}: {self.rejected_label}"
            if self.rejects.doubtful:
                more = "more looks" if self.rejects.doubtful == 1 else "more look"
                rejected += f"; {self.rejects.doubtful:,} {more} doubtful, with a reject score above {DOUBTFUL_ABOVE:g}"
            note = "--reject-above changes it"
            if self.rejects.too_few and not self.rejects.count:
                counted_as = self.rejects.rule.n_samples  # of a sequence, the segments
                are = "is" if counted_as == 1 else "are"
                what = "" if counted_as == n_samples else f"{counted(counted_as, 'segment')} {are} "
                note = f"{what}too few to find the cut: more than {FIRST} are needed"
            entries["rejected"] = f"{rejected} ({note})"
        return entries

    def warning_entries(self) -> dict[str, str]:
        warnings = self.warnings()
        return {"warning" if len(warnings) == 1 else "warnings": "; ".join(warnings)} if warnings else {}

    def size(self, what: str) -> str:
        """Name and size of the set, with its samples called `what`."""
        features = self.comparison.features
        classes = counted(features.n_classes, "class", "classes")
        return f"{self.comparison.name}: {counted(features.n_samples, what)}, {classes}"


def format_scale(scale: float, *, assumed: bool) -> str:
    """The logit scale, and whether it is known."""
    return f"{scale:g}" + (" (assumed, because none is stored or given; --logit-scale sets it)" if assumed else "")
