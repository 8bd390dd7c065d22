"""Samples as text in the format that Prometheus scrapes (version 0.0.4). Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from deltaq.metrics.events import Histogram, Metric
from deltaq.metrics.totals import Distribution, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of an answer with this text."""

_IN_LABELS = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def prometheus_text(samples: Iterable[Sample]) -> str:
    """The samples as text, with the help and type of each metric before its values."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    return "".join(
        f"{line}\n" for metric, found in by_metric.items() for line in _lines(metric, found)
    )


def _lines(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.when.translate(_IN_HELP)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in samples:
        if not isinstance(sample.value, Distribution):
            yield f"{metric.name}{_labels(sample.labels)} {_number(sample.value)}"
        elif isinstance(metric, Histogram):
            ends = [*map(_number, metric.bounds), "+Inf"]
            for end, count in zip(ends, accumulate(sample.value.buckets), strict=True):
                yield f"{metric.name}_bucket{_labels({**sample.labels, 'le': end})} {count}"
            yield f"{metric.name}_sum{_labels(sample.labels)} {_number(sample.value.sum)}"
            yield f"{metric.name}_count{_labels(sample.labels)} {sample.value.count}"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _number(value: float) -> str:
    """Whole numbers without a fraction; all others with the digits that make them exact."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Inf")
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
