//! A report as a self-contained page: style, tables and figures inside, no script, nothing that a browser would fetch.

use std::fmt::Write as _;
use std::path::Path;

use super::chart::{Drawing, Figure, Width, escape, page_rules};
use super::files::{create_directory, write_file};
use super::model::{Block, Cell, Report, Section, Table, Tone};
use crate::LoadgenError;

/// Writes `report.html` and an SVG file for each figure into `directory`, which is created if needed.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path, report: &Report) -> Result<(), LoadgenError> {
    create_directory(directory)?;
    for figure in figures(report) {
        let path = directory.join(format!("{}.svg", figure.name));
        write_file(&path, |file| file.write_all(figure.to_file().as_bytes()))?;
    }
    write_file(&directory.join("report.html"), |file| file.write_all(page(report).as_bytes()))
}

fn figures(report: &Report) -> impl Iterator<Item = &Figure> {
    report.sections.iter().flat_map(|section| &section.blocks).filter_map(|block| match block {
        Block::Figure(figure) => Some(figure),
        _ => None,
    })
}

/// The page as HTML: one file without scripts, which fetches nothing.
pub fn page(report: &Report) -> String {
    let Report { title, headline, origin, sections } = report;
    let [title, headline] = [title, headline].map(|text| escape(text));
    let [command, date, machine] = [&origin.command, &origin.date, &origin.machine].map(|text| escape(text));
    let (version, charts) = (origin.version, page_rules());
    let mut body = String::new();
    contents(&mut body, sections);
    for (number, one) in sections.iter().enumerate() {
        section(&mut body, number, one);
    }
    // The policy blocks fetches and scripts even if an external name were not escaped.
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}: {headline}</title>\n<style>{RULES}{charts}</style>\n</head>\n<body>\n<main>\n\
         <header><p class=\"subject\">{title}</p>\n<h1>{headline}</h1>\n\
         <p class=\"note\">{date} · tenbin {version} · {machine}</p>\n<pre>{command}</pre></header>\n\
         {body}</main>\n</body>\n</html>\n"
    )
}

/// As [`page`], without links to the figures' own files: for a page that is passed on alone.
pub fn page_alone(report: &Report) -> String {
    figures(report).fold(page(report), |html, figure| html.replace(&link_to_file(figure), ""))
}

fn link_to_file(figure: &Figure) -> String {
    format!(" <a href=\"{}.svg\">SVG</a>", escape(&figure.name))
}

/// Links to all sections but the first.
fn contents(body: &mut String, sections: &[Section]) {
    let link = |(number, section): (usize, &Section)| {
        format!("<li><a href=\"#section-{number}\">{}</a></li>", escape(&section.title))
    };
    let links = sections.iter().enumerate().skip(1).map(link).collect::<String>();
    put(body, format_args!("<nav aria-label=\"Contents\"><ol>{links}</ol></nav>"));
}

fn section(body: &mut String, number: usize, section: &Section) {
    if !section.title.is_empty() {
        put(body, format_args!("<h2 id=\"section-{number}\">{}</h2>", escape(&section.title)));
    }
    for block in &section.blocks {
        match block {
            Block::Text(text) => put(body, format_args!("<p>{}</p>", escape(text))),
            Block::List(items) => put(body, format_args!("<ul>{}</ul>", all(items, |item| item_of(&escape(item), "")))),
            Block::Banner(tone, text) => {
                let (class, mark) = (tone.class(), tone.mark());
                put(body, format_args!("<p class=\"banner{class}\">{mark}{}</p>", escape(text)));
            }
            Block::Checks(checks) => {
                let check = |(holds, text): &(bool, String)| {
                    let tone = if *holds { Tone::Good } else { Tone::Bad };
                    item_of(&format!("{}{}", tone.mark(), escape(text)), tone.class())
                };
                put(body, format_args!("<ul class=\"checks\">{}</ul>", all(checks, check)));
            }
            Block::Tiles(tiles) => put(body, format_args!("<div class=\"tiles\">{}</div>", all(tiles, tile))),
            Block::Table(table) => put(body, format_args!("{}", table_of(table))),
            Block::Figure(figure) => put(body, format_args!("{}", figure_of(figure))),
        }
    }
}

fn put(body: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(body, "{element}").expect("a String takes everything");
}

fn all<T>(items: &[T], element: impl Fn(&T) -> String) -> String {
    items.iter().map(element).collect()
}

fn item_of(content: &str, class: &str) -> String {
    format!("<li class=\"{}\">{content}</li>", class.trim_start()).replace(" class=\"\"", "")
}

fn tile((name, Cell { text, tone }): &(String, Cell)) -> String {
    let (class, text, name) = (tone.class(), escape(text), escape(name));
    format!("<div class=\"tile\"><span class=\"figure{class}\">{text}</span><span>{name}</span></div>")
}

fn table_of(table: &Table) -> String {
    let table = table.turned_if_wide();
    let class = |column: usize, tone: Tone| {
        let number = if column < table.text_columns { "" } else { "n" };
        match format!("{number}{}", tone.class()) {
            class if class.is_empty() => class,
            class => format!(" class=\"{}\"", class.trim_start()),
        }
    };
    let cell = |(column, cell): (usize, &Cell)| format!("<td{}>{}</td>", class(column, cell.tone), escape(&cell.text));
    let title = |(column, text): (usize, &String)| format!("<th{}>{}</th>", class(column, Tone::Plain), escape(text));
    let rows = all(&table.rows, |row| {
        let rest = "<td></td>".repeat(table.head.len().saturating_sub(row.len()));
        format!("<tr>{}{rest}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
    });
    let head = match table.head.iter().enumerate().map(title).collect::<String>() {
        head if head.is_empty() => head,
        head => format!("<thead><tr>{head}</tr></thead>\n"),
    };
    format!("<div class=\"wide-table\"><table>{head}<tbody>{rows}</tbody></table></div>")
}

fn figure_of(figure: &Figure) -> String {
    let (name, title, caption) = (escape(&figure.name), escape(&figure.title), escape(&figure.caption));
    let drawing = match &figure.drawing {
        Drawing::Table(table) => table_of(table),
        _ => figure.to_element(Width::Wide) + &figure.to_element(Width::Narrow),
    };
    format!(
        "<figure id=\"{name}\"><h3>{title}</h3>{drawing}<figcaption>{caption}{}</figcaption></figure>",
        link_to_file(figure)
    )
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => " good",
            Self::Bad => " bad",
            Self::Warning => " warning",
            Self::Aside => " aside",
        }
    }
}

/// Style rules of everything except figures. A table wider than the screen has a shadow at its cut edge.
const RULES: &str = "\
:root{--page:#fff;--text:#1b1f24;--muted:#57606a;--line:#d8dde3;--soft:#f5f7f9;--good:#04693e;--bad:#b3261e;--warning:#b58100;--tint:#fff6d6;--link:#0b5cad}\
@media screen and (prefers-color-scheme:dark){:root{--page:#15191e;--text:#e6e9ed;--muted:#a2abb5;--line:#343c45;--soft:#1c2127;--good:#5fd39a;--bad:#ff8a80;--warning:#e8b73a;--tint:#3a3115;--link:#7cc0ff}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}\
main{max-width:800px;margin:0 auto;padding:24px 16px 48px}\
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .3em;overflow-wrap:anywhere}\
.subject{margin:0;color:var(--muted);font-weight:600}\
pre{margin:.6em 0;padding:.5em .7em;background:var(--soft);border-radius:6px;font-size:.8125rem;white-space:pre-wrap;overflow-wrap:anywhere}\
nav ol{display:flex;flex-wrap:wrap;gap:.2em 1.2em;margin:1em 0;padding:.6em 0;border:solid var(--line);border-width:1px 0;list-style:none;font-size:.9rem}\
.checks{list-style:none;padding:0;font-weight:600}\
h2{font-size:1.2rem;margin:2.2em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--line)}\
h3{font-size:1rem;margin:1.6em 0 .6em}figure h3{margin-top:0}\
p{margin:.6em 0;overflow-wrap:anywhere}.note,figcaption{color:var(--muted)}\
a{color:var(--link)}ul{padding-left:1.2em}li{overflow-wrap:anywhere}\
.banner{padding:.6em .8em;border-left:4px solid var(--line);background:var(--soft);font-weight:600}\
.banner.warning{border-color:var(--warning);background:var(--tint)}.banner.good{border-color:var(--good)}.banner.bad{border-color:var(--bad)}\
.good{color:var(--good)}.bad{color:var(--bad)}td.bad{font-weight:600}.aside{color:var(--muted)}.banner.good,.banner.bad,.banner.warning{color:var(--text)}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(118px,1fr));gap:10px;margin:1em 0}\
.tile{padding:.5em .7em;background:var(--soft);border:1px solid var(--line);border-radius:6px;display:flex;flex-direction:column;color:var(--muted);font-size:.85rem}\
.tile .figure{font-size:1.35rem;font-weight:600;color:var(--text);font-variant-numeric:tabular-nums}\
.tile .good{color:var(--good)}.tile .bad{color:var(--bad)}\
.wide-table{overflow-x:auto;margin:.8em 0;background:\
linear-gradient(to right,var(--page) 40%,transparent) left/40px 100%,linear-gradient(to left,var(--page) 40%,transparent) right/40px 100%,\
linear-gradient(to right,var(--line),transparent) left/12px 100%,linear-gradient(to left,var(--line),transparent) right/12px 100%;\
background-attachment:local,local,scroll,scroll;background-repeat:no-repeat}\
table{border-collapse:collapse;min-width:min(100%,26em);font-size:.875rem;font-variant-numeric:tabular-nums}\
th,td{padding:.35em .6em;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}\
th{color:var(--muted);font-weight:600;vertical-align:bottom}.n{text-align:right}td.n{white-space:nowrap}\
td:first-child{white-space:pre-wrap;overflow-wrap:break-word;min-width:6em;max-width:22em}\
@media screen and (max-width:640px){th,td{padding:.35em .45em}table{font-size:.8125rem}}\
figure{margin:1.8em 0;break-inside:avoid}figure svg{width:100%;height:auto}.note,figcaption{font-size:.875rem;margin-top:.4em}\
@media print{body{font-size:13px}main{max-width:none;padding:0}figure{margin:1em 0}figure svg{width:84%}h2{margin-top:1.4em}h2,h3{break-after:avoid}tr{break-inside:avoid}.wide-table{overflow:visible;background:none}}";

#[cfg(test)]
mod tests {
    use super::super::origin::Origin;
    use super::*;

    #[test]
    fn names_from_outside_stay_text() {
        let mut table = Table::new(["<i>"]);
        table.add("\"><img src=x>", [""; 0]);
        let lead = Section::default().with(table).with(Block::List(vec!["<li>".to_owned()]));
        let strange = "<script>alert(1)</script>".to_owned();
        let origin = Origin { command: strange.clone(), ..Origin::here() };
        let report = Report { title: strange, headline: "a & b".to_owned(), origin, sections: vec![lead] };
        let html = page(&report);
        assert!(!html.contains("<script") && !html.contains("<img") && !html.contains("<i>"), "{html}");
        assert!(html.contains("&lt;script&gt;") && html.contains("<h1>a &amp; b</h1>"));
    }

    #[test]
    fn every_section_is_in_the_contents() {
        let sections = vec![Section::default(), Section::new("One"), Section::new("Two")];
        let report = Report { title: "t".to_owned(), headline: "h".to_owned(), origin: Origin::here(), sections };
        let html = page(&report);
        for (number, title) in [(1, "One"), (2, "Two")] {
            assert!(html.contains(&format!("<a href=\"#section-{number}\">{title}</a>")), "{html}");
            assert!(html.contains(&format!("<h2 id=\"section-{number}\">{title}</h2>")), "{html}");
        }
    }
}
