"""Charts as Vega-Lite specifications: plain dictionaries, without data and without colours of their own.

Data is a :class:`Table`, compact enough for a page of a hundred thousand cells; the page and :func:`to_svg` put it into
the specification. Colours are those of a theme, so that one specification serves light, dark and print. Where the
height follows from the data, ``usermeta`` says how: so many pixels for each of the rows that differ in these fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, and four more for many classes.
_LIGHT = [
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#B58900",
    "#56B4E9",
    "#6A51A3",
    "#7F7F7F",
    "#8C564B",
    "#2F4B7C",
    "#8F9E0B",
    "#B2182B",
]
_DARK = [
    "#56B4E9",
    "#F0883E",
    "#2BC48A",
    "#E79AC5",
    "#E6C35C",
    "#9AD4F5",
    "#B39DDB",
    "#A0A7AE",
    "#C49A8B",
    "#8FA8DC",
    "#C6D94A",
    "#F28B82",
]


def _theme(ink: str, muted: str, line: str, paper: str, colours: list[str], ends: tuple[str, str], deep: str) -> Spec:
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    return {
        "background": "transparent",
        "font": font,
        "padding": 2,
        "view": {"stroke": None},
        "axis": {
            **{"labelColor": muted, "titleColor": muted, "gridColor": line, "domainColor": line, "tickColor": line},
            **{"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelLimit": 150},
        },
        "legend": {
            **{"labelColor": ink, "titleColor": muted, "labelFontSize": 11, "titleFontSize": 11, "orient": "top"},
            **{"titleFontWeight": "normal", "symbolType": "circle", "labelLimit": 160, "columns": 4, "offset": 8},
        },
        "title": {"color": ink, "fontSize": 12, "anchor": "start"},
        "text": {"color": ink, "fontSize": 11},
        "mark": {"color": colours[0]},
        "rule": {"color": muted},
        "range": {
            "category": colours,
            "roles": [*colours[:2], muted],
            "diverging": [ends[0], paper, ends[1]],
            "heatmap": [paper, deep],
            "ramp": [paper, deep],
        },
    }


THEMES: dict[str, Spec] = {
    "light": _theme("#1d2329", "#56616c", "#e2e5e9", "#f6f7f8", _LIGHT, ("#2166ac", "#c2570c"), "#0b5c97"),
    "dark": _theme("#e8ebee", "#a3aeb9", "#31383f", "#20262b", _DARK, ("#5aa9e6", "#f0883e"), "#2a78b8"),
}


@dataclass(frozen=True)
class Table:
    """Rows of data, each a list in the order of the columns."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]

    def values(self) -> list[dict[str, Any]]:
        """As Vega takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Triangle:
    """A symmetric matrix with ones on its diagonal, as hundredths of the entries above it; the page unfolds it."""

    size: int
    upper: Sequence[int]


@dataclass(frozen=True)
class Chart:
    """A specification, its data, and its words."""

    title: str
    about: str
    spec: Spec
    data: Table | Triangle
    told: str = ""  # what the picture says, for who cannot see it
    choices: dict[str, Table | Triangle] = field(default_factory=dict)  # other data, by what the reader selects
    wide: bool = False  # over the whole width of the page


def to_svg(chart: Chart, width: int = 560) -> str:
    """The chart as it is on paper, for notebooks; needs the extra ``report``."""
    import vl_convert

    assert isinstance(chart.data, Table)
    spec = {
        **chart.spec,
        "width": width,
        "data": {"values": chart.data.values()},
        "description": f"{chart.title}. {chart.told}",
    }
    room = {"left": 24, "right": 8, "top": 4, "bottom": 4}  # the reader's font may be wider than the one measured with
    return str(vl_convert.vegalite_to_svg(spec, config=THEMES["light"] | {"background": "white", "padding": room}))


def _spec(height: int | Spec, **rest: Any) -> Spec:
    return {"width": "container", "height": height, **rest}


def _x(field: str, title: str, **rest: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": False, "nice": True}, **rest}


def _names(field: str, title: str | None = None, **rest: Any) -> Spec:
    """Names in the order they come in."""
    return {"field": field, "type": "nominal", "title": title, "sort": None, **rest}


def _networks(field: str, networks: Sequence[str], present: Sequence[str], title: str | None = None) -> Spec:
    """A network has the same colour in every chart; the legend names those that are present."""
    shown = {"scale": {"domain": list(networks)}, "legend": {"values": [n for n in networks if n in present]}}
    return {"field": field, "type": "nominal", "title": title, **shown}


# ---- a run -----------------------------------------------------------------------------------------------------------


def scores(data: Table, metric: str, lines: int) -> Spec:
    """Test scores; with several seeds their intervals, and the seeds behind them (``part`` is ``seed`` or ``line``)."""
    y = _names("name", axis={"ticks": False, "domain": False, "grid": True, "labelPadding": 8})
    colour = {
        **{"field": "role", "type": "nominal", "legend": None},
        "scale": {"domain": ["ships", "base", "other"], "range": "roles"},
    }
    x = _x("test", f"test {metric} in per cent", axis={"tickCount": 8}, scale={"zero": False, "padding": 12})
    single: Spec = {
        "transform": [{"filter": "datum.part == 'seed'"}],
        "mark": {"type": "tick", "thickness": 1, "size": 12, "opacity": 0.35, "aria": False},
        "encoding": {"x": x, "y": y, "color": colour},
    }
    interval: Spec = {
        "transform": [{"filter": "datum.part == 'line'"}],
        "mark": {"type": "rule", "strokeWidth": 2, "aria": False},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour},
    }
    mean: Spec = {
        "transform": [{"filter": "datum.part == 'line'"}],
        "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
        "encoding": {**{"x": x, "y": y, "color": colour}, "tooltip": [{"field": n} for n in data.columns[1:]]},
    }
    seeds = any(row[0] == "seed" for row in data.rows)
    return _spec(26 * lines, layer=[*([single] if seeds else []), *([interval] if "low" in data.columns else []), mean])


def curves(field: str, title: str, networks: Sequence[str], present: Sequence[str], dots: bool = False) -> Spec:
    """One line for each network; with dots where points are so few that a line may be a single one."""
    points = {"point": {"size": 28}} if dots else {}
    return _spec(
        220,
        mark={"type": "line", "strokeWidth": 1.6, "interpolate": "linear", **points},
        encoding={
            "x": _x("epoch", "epoch", scale={"nice": False}, axis={"tickMinStep": 1}),
            "y": _x(field, title),
            "color": _networks("network", networks, present),
            "tooltip": [{"field": n} for n in ("network", "epoch", field)],
        },
    )


def correlations(size: int = 320) -> Spec:
    """A matrix of correlations; ``a`` and ``b`` are channels, ``r`` is in hundredths."""
    axis = {"labelOverlap": True, "labelAngle": 0, "ticks": False, "domain": False}
    return _spec(
        size,
        transform=[{"calculate": "datum.r / 100", "as": "correlation"}],
        mark={"type": "rect", "aria": False},
        encoding={
            "x": {"field": "a", "type": "ordinal", "title": "channel", "axis": axis},
            "y": {"field": "b", "type": "ordinal", "title": "channel", "axis": axis},
            "color": {
                **{"field": "correlation", "type": "quantitative", "title": "correlation"},
                "scale": {"domain": [-1, 1], "domainMid": 0, "interpolate": "lab"},
                "legend": {"gradientLength": 140, "gradientThickness": 10, "values": [-1, 0, 1]},
            },
            "tooltip": [{"field": n} for n in ("a", "b", "correlation")],
        },
    )


def origins(networks: Sequence[str], present: Sequence[str]) -> Spec:
    """Where each channel of each network lies after the exchange, coloured by the network that it comes from."""
    return _spec(
        26 * len(present),
        mark={"type": "rect", "aria": False, "cornerRadius": 2},
        encoding={
            "x": {
                **{"field": "channel", "type": "ordinal", "title": "channel"},
                "axis": {"labelOverlap": True, "labelAngle": 0, "ticks": False, "domain": False},
                "scale": {"paddingInner": 0.08},
            },
            "y": _names("network", axis={"ticks": False, "domain": False}, scale={"paddingInner": 0.15}),
            "color": _networks("from", networks, networks, "comes from"),
            "opacity": {"condition": {"test": "datum.moved", "value": 1}, "value": 0.28},
            "tooltip": [{"field": n} for n in ("network", "channel", "from", "was")],
        },
    )


def entropies(networks: Sequence[str]) -> Spec:
    """Entropy of a layer in each network, step by step."""
    return _spec(
        240,
        mark={"type": "line", "point": {"size": 28}, "strokeWidth": 1.6},
        encoding={
            "x": _x("step", "step of the exchange", scale={"nice": False}, axis={"tickMinStep": 1, "format": "d"}),
            "y": _x("entropy", "entropy of the layer"),
            "color": _networks("network", networks, networks),
            "tooltip": [{"field": n} for n in ("network", "step", "entropy")],
        },
    )


def before_after(layers: int) -> Spec:
    """Entropy of every layer before and after the exchange."""
    y = _names("layer", axis={"ticks": False, "domain": False, "grid": True})
    return _spec(
        max(24 * layers, 60),
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.5, "aria": False},
                "encoding": {
                    **{"x": {"aggregate": "min", **_x("entropy", "entropy of the layer")}, "y": y},
                    "x2": {"aggregate": "max", "field": "entropy"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {
                    **{"x": _x("entropy", "entropy of the layer"), "y": y, "color": _names("when")},
                    "tooltip": [{"field": n} for n in ("layer", "when", "entropy")],
                },
            },
        ],
    )


def confusion(classes: int) -> Spec:
    """Truth against prediction, coloured by the share of the row; counts are written where there is room."""
    axis = {"ticks": False, "domain": False, "labelOverlap": True, "labelLimit": 90}
    x = _names("predicted", "predicted class", axis={**axis, "labelAngle": 0 if classes <= 10 else -90})
    y = _names("truth", "true class", axis=axis)
    cells: Spec = {
        "mark": {"type": "rect", "aria": classes <= 15},
        "encoding": {
            "color": {
                **{"field": "share", "type": "quantitative", "title": "share of the class"},
                "scale": {"domain": [0, 1]},
                "legend": {"format": ".0%", "gradientLength": 140, "gradientThickness": 10, "tickCount": 3},
            },
            "tooltip": [{"field": n} for n in ("truth", "predicted", "count")] + [{"field": "share", "format": ".1%"}],
        },
    }
    numbers: Spec = {
        "transform": [{"filter": "datum.count > 0"}],
        "mark": {"type": "text", "fontSize": 10, "aria": False},
        "encoding": {
            "text": {"field": "count"},
            "color": {"condition": {"test": "datum.share > 0.45", "value": "white"}},
        },
    }
    height = min(max(26 * classes, 300), 620)
    return _spec(height, encoding={"x": x, "y": y}, layer=[cells, numbers] if classes <= 15 else [cells])


def reliability() -> Spec:
    """How often predictions are right, against how sure they are."""
    diagonal = [{"confidence": 0, "accuracy": 0}, {"confidence": 1, "accuracy": 1}]
    whole = {"domain": [0, 1], "nice": False}
    x = _x("confidence", "confidence of the prediction", scale=whole, axis={"format": ".0%"})
    y = _x("accuracy", "share that is right", scale=whole, axis={"format": ".0%"})
    return _spec(
        300,
        layer=[
            {
                "data": {"values": diagonal},
                "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "opacity": 0.6, "aria": False},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "line", "point": False, "strokeWidth": 1.4, "aria": False},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "point", "filled": True, "opacity": 1},
                "encoding": {
                    **{"x": x, "y": y},
                    "size": {
                        **{"field": "count", "type": "quantitative", "title": "predictions"},
                        "scale": {"range": [30, 320]},
                        "legend": {"tickCount": 3},
                    },
                    "tooltip": [{"field": n} for n in ("confidence", "accuracy", "count")],
                },
            },
        ],
    )


def roc() -> Spec:
    """True against false positives."""
    whole = {"domain": [0, 1], "nice": False}
    x = _x("false", "false positives", scale=whole, axis={"format": ".0%"})
    y = _x("true", "true positives", scale=whole, axis={"format": ".0%"})
    return _spec(
        300,
        layer=[
            {
                "data": {"values": [{"false": 0, "true": 0}, {"false": 1, "true": 1}]},
                "mark": {"type": "line", "strokeDash": [4, 4], "strokeWidth": 1, "opacity": 0.6, "aria": False},
                "encoding": {"x": x, "y": y},
            },
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"x": x, "y": y}},
        ],
    )


def embedding(classes: int) -> Spec:
    """A map of outputs; what was predicted wrongly is hollow."""
    hidden: Spec = {"type": "quantitative", "axis": None, "scale": {"zero": False}}
    colour = _names("class", legend={"symbolSize": 60} if classes <= 20 else None)
    colour |= {"scale": {"scheme": "tableau20"}} if classes > 10 else {}
    return _spec(
        360,
        mark={"type": "point", "size": 26, "aria": False, "strokeWidth": 1.2},
        encoding={
            "x": {"field": "x", **hidden},
            "y": {"field": "y", **hidden},
            "stroke": colour,
            "fill": colour,
            "fillOpacity": {"condition": {"test": "datum.right", "value": 0.75}, "value": 0},
            "tooltip": [{"field": n} for n in ("class", "predicted")],
        },
    )


# ---- a store ---------------------------------------------------------------------------------------------------------


def forest(over: str, lines: Sequence[str]) -> Spec:
    """Paired differences with their intervals, and the paper's difference where it has one."""
    y: Spec = {
        **{"field": "place", "type": "nominal", "title": None, "sort": None},
        "axis": {"ticks": False, "domain": False, "grid": True, "labelPadding": 8},
        "scale": {"paddingInner": 0.35, "paddingOuter": 0.15},
    }
    offset = {"field": "line", "sort": None}
    title = f"paired difference to {over}, points"
    few = {"axis": {"tickCount": 10}}
    colour = _lines(lines)
    return _spec(
        120,
        usermeta={"rows": ["place", "line"], "step": 13},
        layer=[
            {"mark": {"type": "rule", "strokeWidth": 1, "aria": False}, "encoding": {"x": {"datum": 0}}},
            {
                "mark": {"type": "rule", "strokeWidth": 1.6, "aria": False},
                "encoding": {
                    **{
                        "x": _x("low", title, **few),
                        "x2": {"field": "high"},
                        "y": y,
                        "yOffset": offset,
                        "color": colour,
                    }
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 46, "opacity": 1},
                "encoding": {
                    **{"x": _x("difference", title, **few), "y": y, "yOffset": offset, "color": colour},
                    "tooltip": [{"field": n} for n in ("place", "line", "difference", "low", "high", "pairs", "paper")],
                },
            },
            {
                "transform": [{"filter": "isValid(datum.paper)"}],
                "mark": {"type": "point", "shape": "diamond", "size": 50, "filled": False, "strokeWidth": 1.3},
                "encoding": {
                    **{"x": _x("paper", title, **few), "y": y, "yOffset": offset, "color": colour},
                },
            },
        ],
    )


def _lines(lines: Sequence[str]) -> Spec:
    """Colours of lines: what this is all about has the one that stands out."""
    first = [name for name in lines if name.split(",")[0] == "AKE"]
    return _names("line", scale={"domain": [*first, *(name for name in lines if name not in first)]})


def along(axis: str, values: Sequence[float], lines: Sequence[str]) -> Spec:
    """Mean test scores along an axis, with intervals of the mean."""
    steps = sorted(set(values))
    ordinal = len(steps) > 2 and steps[-1] / max(steps[0], 1e-9) > 12  # 2, 4, 8, 16, 32: doublings lie side by side
    x: Spec = {"field": "x", "title": axis, "type": "ordinal" if ordinal else "quantitative"}
    x |= {"axis": {"labelAngle": 0}} if ordinal else {"scale": {"zero": False}, "axis": {"values": steps}}
    colour = _lines(lines)
    return _spec(
        280,
        layer=[
            {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": x, "y": _y("mean"), "color": colour}},
            {
                "mark": {"type": "rule", "opacity": 0.55, "strokeWidth": 1.4, "aria": False},
                "encoding": {"x": x, "y": _y("low"), "y2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
                "encoding": {
                    **{"x": x, "y": _y("mean"), "color": colour},
                    "tooltip": [{"field": n} for n in ("line", "x", "mean", "low", "high")],
                },
            },
        ],
    )


def _y(field: str) -> Spec:
    return _x(field, "test score in per cent")


def learning() -> Spec:
    """Validation scores by epoch; re-training goes on where individual learning ended."""
    return _spec(
        300,
        mark={"type": "line", "strokeWidth": 1.6},
        encoding={
            "x": _x("epoch", "epoch", scale={"nice": False}, axis={"tickMinStep": 1}),
            "y": _x("validation", "validation score in per cent"),
            "color": _names("network"),
            "strokeDash": {"field": "phase", "type": "nominal", "title": None, "sort": None},
            "tooltip": [{"field": n} for n in ("network", "phase", "epoch", "validation")],
        },
    )


def strip() -> Spec:
    """Every seed of a line, beside those of what it is compared with."""
    return _spec(
        90,
        usermeta={"rows": ["line"], "step": 46},
        layer=[
            {
                "transform": [{"calculate": "((datum.seed * 7919 + datum.split * 104729) % 97) / 97", "as": "place"}],
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.55},
                "encoding": {
                    "x": _x("test", "test score in per cent", axis={"tickCount": 8}),
                    "y": _names("line", axis={"ticks": False, "domain": False}),
                    "yOffset": {"field": "place", "type": "quantitative", "scale": {"domain": [0, 1]}},
                    "color": _names("line", legend=None),
                    "tooltip": [{"field": n} for n in ("line", "split", "seed", "test")],
                },
            },
            {
                "mark": {"type": "tick", "thickness": 2, "size": 34, "aria": False},
                "encoding": {
                    "x": {"aggregate": "mean", "field": "test", "type": "quantitative"},
                    "y": _names("line"),
                    "color": _names("line", legend=None),
                },
            },
        ],
    )
