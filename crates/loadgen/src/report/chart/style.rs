//! Colours and strokes as classes, so that the same drawing serves light and dark screens and paper.

/// A colour from a palette for colour-blind readers (after Okabe and Ito), or a neutral one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// By number; colours repeat after [`Ink::COLOURS`].
    Colour(usize),
    /// For reference values.
    Neutral,
}

impl Ink {
    /// Number of colours.
    pub const COLOURS: usize = 8;

    pub(super) fn class(self) -> String {
        match self {
            Self::Colour(number) => format!("c{}", number % Self::COLOURS),
            Self::Neutral => "cn".to_owned(),
        }
    }
}

/// Line style.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stroke {
    /// A whole line.
    #[default]
    Solid,
    /// Dashes.
    Dashed,
    /// Dashes and dots.
    DashDotted,
    /// Dots.
    Dotted,
}

impl Stroke {
    /// Style of line `number` among several that may coincide, so that all stay visible.
    pub fn of(number: usize) -> Self {
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
    format!("{SHAPES}{LIGHT}@media screen and (prefers-color-scheme:dark){{{DARK}}}")
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
const SHAPES: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif;font-variant-numeric:tabular-nums}\
.b{font-weight:600}.h{paint-order:stroke;stroke-width:4;stroke-linejoin:round}.e{text-anchor:end}.k{text-anchor:middle}\
.g,.x{stroke-width:1;fill:none}\
.l{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\
.d1{stroke-dasharray:7 5}.d2{stroke-dasharray:1 5}.d3{stroke-dasharray:12 5 1 5}\
.a{stroke:none;fill:currentColor;fill-opacity:.18}\
.p{fill:none;stroke:currentColor;stroke-width:3.4;stroke-linecap:round;stroke-opacity:.75}.s{stroke-width:9;stroke-opacity:1}\
.f{stroke:none;fill:currentColor}\
.o{stroke:currentColor;fill:currentColor;fill-opacity:.12;stroke-width:1.5;stroke-dasharray:3 2}\
.w{fill:none;stroke-width:1.5}.z{stroke:none}";

/// Colours of a light screen and of paper: page and text, then the inks.
const LIGHT: &str = "\
.page{fill:#fff}.t{fill:#1b1f24}.t.m{fill:#57606a}.g{stroke:#e4e7eb}.x{stroke:#8c959f}.z{fill:#eef1f4}.w{stroke:#1b1f24}.h{stroke:#fff}\
.cn{color:#6e7781}.c0{color:#0072b2}.c1{color:#d55e00}.c2{color:#009e73}.c3{color:#cc79a7}.c4{color:#b8860b}.c5{color:#3fa7e0}\
.c6{color:#7a4f9e}.c7{color:#8a6d5a}";

const DARK: &str = "\
.page{fill:#15191e}.t{fill:#e6e9ed}.t.m{fill:#a2abb5}.g{stroke:#2b323a}.x{stroke:#6b7681}.z{fill:#20262d}.w{stroke:#e6e9ed}.h{stroke:#15191e}\
.cn{color:#9aa4ae}.c0{color:#4aa8e8}.c1{color:#ff8c42}.c2{color:#2cc295}.c3{color:#e79cc4}.c4{color:#e8b73a}.c5{color:#9ad7ff}\
.c6{color:#b58ce0}.c7{color:#c4a48e}";
