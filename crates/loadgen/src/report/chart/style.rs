//! Colours and strokes as classes, so that one drawing serves light and dark screens and paper.

/// A colour from a palette for colour-blind readers (after Okabe and Ito), or a neutral one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    /// By number; colours repeat after [`Ink::COLOURS`].
    Colour(usize),
    /// For reference values.
    Neutral,
}

impl Ink {
    pub(crate) const COLOURS: usize = 8;

    pub(super) fn class(self) -> String {
        match self {
            Self::Colour(number) => format!("c{}", number % Self::COLOURS),
            Self::Neutral => "cn".to_owned(),
        }
    }
}

/// Line style.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Stroke {
    #[default]
    Solid,
    Dashed,
    DashDotted,
    Dotted,
}

impl Stroke {
    /// Style of line `number` among several that may coincide, so that all stay visible.
    pub(crate) fn of(number: usize) -> Self {
        [Self::Solid, Self::Dashed, Self::DashDotted][number % 3]
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dashed => " d1",
            Self::DashDotted => " d3",
            Self::Dotted => " d2",
        }
    }
}

/// Style rules of a figure in its own file.
pub(super) fn file_rules() -> String {
    let (light, dark) = (colour_rules(&LIGHT), colour_rules(&DARK));
    format!("{SHAPE_RULES}{light}@media screen and (prefers-color-scheme:dark){{{dark}}}")
}

/// Style rules of the figures in a page. Narrow figures are for screens too small for wide ones.
pub(crate) fn page_rules() -> String {
    let narrow = "svg.wide{display:none}svg.narrow{display:block}";
    format!("{}svg.narrow{{display:none}}@media screen and (max-width:640px){{{narrow}}}", file_rules())
}

/// Style rules of shapes, by class.
///
/// `t` text, `m` muted, `b` bold, `e` right-aligned, `k` centred; `g` grid, `x` axis; `l` line, `d1` dashed, `d2`
/// dotted; `a` area, `p` points, `s` of a legend, `f` filled, `o` outlined, `z` zone.
const SHAPE_RULES: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;font-variant-numeric:tabular-nums}\
.b{font-weight:600}.h{paint-order:stroke;stroke-width:4;stroke-linejoin:round}.e{text-anchor:end}.k{text-anchor:middle}\
.g{stroke-width:1;fill:none}.x{stroke-width:1;fill:none}\
.l{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\
.d1{stroke-dasharray:7 5}.d2{stroke-dasharray:1 5}.d3{stroke-dasharray:12 5 1 5}\
.a{stroke:none;fill-opacity:.18}\
.p{fill:none;stroke-width:3.4;stroke-linecap:round;stroke-opacity:.75}.s{stroke-width:8;stroke-opacity:1}\
.f{stroke:none}.o{fill-opacity:.12;stroke-width:1.5;stroke-dasharray:3 2}\
.w{fill:none;stroke-width:1.5}.z{stroke:none}";

/// Colours of a light or dark screen.
struct Palette {
    page: &'static str,
    text: &'static str,
    muted: &'static str,
    grid: &'static str,
    axis: &'static str,
    zone: &'static str,
    neutral: &'static str,
    colours: [&'static str; Ink::COLOURS],
}

const LIGHT: Palette = Palette {
    page: "#fff",
    text: "#1b1f24",
    muted: "#57606a",
    grid: "#e4e7eb",
    axis: "#8c959f",
    zone: "#eef1f4",
    neutral: "#6e7781",
    colours: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3fa7e0", "#7a4f9e", "#8a6d5a"],
};

const DARK: Palette = Palette {
    page: "#15191e",
    text: "#e6e9ed",
    muted: "#a2abb5",
    grid: "#2b323a",
    axis: "#6b7681",
    zone: "#20262d",
    neutral: "#9aa4ae",
    colours: ["#4aa8e8", "#ff8c42", "#2cc295", "#e79cc4", "#e8b73a", "#9ad7ff", "#b58ce0", "#c4a48e"],
};

fn colour_rules(palette: &Palette) -> String {
    let Palette { page, text, muted, grid, axis, zone, neutral, colours } = palette;
    let mut rules = format!(
        ".page{{fill:{page}}}.t{{fill:{text}}}.m{{fill:{muted}}}.g{{stroke:{grid}}}.x{{stroke:{axis}}}.z{{fill:{zone}}}.w{{stroke:{text}}}.h{{stroke:{page}}}"
    );
    let names = (0..colours.len()).map(|number| format!("c{number}")).chain(["cn".to_owned()]);
    for (name, colour) in names.zip(colours.iter().chain([neutral])) {
        rules +=
            &format!(".l.{name},.p.{name},.o.{name}{{stroke:{colour}}}.a.{name},.f.{name},.o.{name}{{fill:{colour}}}");
    }
    rules
}
