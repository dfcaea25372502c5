//! A self-contained page: style, tables and figures inside, no script, nothing that a browser would fetch.

use std::path::Path;

use super::chart::{Figure, Width, escape, page_rules};
use super::write_file;
use crate::LoadgenError;

/// A page that grows downwards, with its figures, each of which is also written as a file.
#[derive(Debug)]
pub(super) struct Page {
    title: String,
    body: String,
    figures: Vec<Figure>,
}

/// A table. The first `text_columns` columns are text, the others numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Number of text columns at the left; at least 1.
    pub(super) text_columns: usize,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
}

/// Meaning of a figure for its reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    /// Not measured in these runs.
    Aside,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

impl Table {
    /// Transposes a table that would be wider than a screen.
    pub(super) fn turned(self) -> Self {
        let Self { head, rows, .. } = self;
        let mut columns = rows.into_iter().map(|row| row.into_iter()).collect::<Vec<_>>();
        let mut turned = head.into_iter().map(|name| {
            let cells = columns.iter_mut().map(|column| column.next().unwrap_or_else(|| "".into()));
            [Cell::from(name)].into_iter().chain(cells).collect::<Vec<_>>()
        });
        let head = turned.next().unwrap_or_default().into_iter().map(|cell| cell.text).collect();
        Self { head, rows: turned.collect(), text_columns: 1 }
    }
}

impl Cell {
    pub(super) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }
}

impl Page {
    pub(super) fn new(title: &str, subtitle: &str) -> Self {
        let body = format!("<h1>{}</h1>\n<p class=\"sub\">{}</p>\n", escape(title), escape(subtitle));
        Self { title: title.to_owned(), body, figures: Vec::new() }
    }

    pub(super) fn heading(&mut self, text: &str) {
        self.body += &format!("<h2>{}</h2>\n", escape(text));
    }

    pub(super) fn paragraph(&mut self, text: &str) {
        self.body += &format!("<p>{}</p>\n", escape(text));
    }

    /// Adds a highlighted line.
    pub(super) fn banner(&mut self, tone: Tone, text: &str) {
        self.body += &format!("<p class=\"banner{}\">{}</p>\n", tone.class(), escape(text));
    }

    /// Adds names and figures in large letters.
    pub(super) fn tiles(&mut self, tiles: &[(String, Cell)]) {
        let tile = |(name, cell): &(String, Cell)| {
            let (tone, text, name) = (cell.tone.class(), escape(&cell.text), escape(name));
            format!("<div class=\"tile\"><span class=\"figure{tone}\">{text}</span><span>{name}</span></div>")
        };
        self.body += &format!("<div class=\"tiles\">{}</div>\n", tiles.iter().map(tile).collect::<String>());
    }

    pub(super) fn list(&mut self, items: &[String]) {
        let item = |text: &String| format!("<li>{}</li>", escape(text));
        self.body += &format!("<ul>{}</ul>\n", items.iter().map(item).collect::<String>());
    }

    /// Adds links to files below the page's directory.
    pub(super) fn links(&mut self, links: &[(String, String)]) {
        let item =
            |(file, text): &(String, String)| format!("<li><a href=\"{}\">{}</a></li>", escape(file), escape(text));
        self.body += &format!("<ul>{}</ul>\n", links.iter().map(item).collect::<String>());
    }

    pub(super) fn table(&mut self, table: &Table) {
        let class = |column: usize| if column < table.text_columns.max(1) { "" } else { " class=\"n\"" };
        let head = |(column, text): (usize, &String)| format!("<th{}>{}</th>", class(column), escape(text));
        let cell = |(column, cell): (usize, &Cell)| match (cell.tone, class(column)) {
            (Tone::Plain, class) => format!("<td{class}>{}</td>", escape(&cell.text)),
            (tone, "") => format!("<td class=\"{}\">{}</td>", tone.class().trim_start(), escape(&cell.text)),
            (tone, _) => format!("<td class=\"n{}\">{}</td>", tone.class(), escape(&cell.text)),
        };
        let row = |row: &Vec<Cell>| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>());
        let head = table.head.iter().enumerate().map(head).collect::<String>();
        let rows = table.rows.iter().map(row).collect::<String>();
        let head = if head.is_empty() { head } else { format!("<thead><tr>{head}</tr></thead>\n") };
        self.body += &format!("<div class=\"wide-table\"><table>{head}<tbody>{rows}</tbody></table></div>\n");
    }

    /// Adds a figure, which is also written as a file.
    pub(super) fn figure(&mut self, figure: Figure) {
        let (name, title, caption) = (escape(&figure.name), escape(&figure.title), escape(&figure.caption));
        let (wide, narrow) = (figure.to_element(Width::Wide), figure.to_element(Width::Narrow));
        self.body += &format!(
            "<figure id=\"{name}\"><h3>{title}</h3>{wide}{narrow}<figcaption>{caption} <a href=\"{name}.svg\">SVG</a></figcaption></figure>\n"
        );
        self.figures.push(figure);
    }

    /// Adds a table with a title, and the same as a figure in a file.
    pub(super) fn titled_table(&mut self, table: &Table, figure: Figure) {
        let (name, title, caption) = (escape(&figure.name), escape(&figure.title), escape(&figure.caption));
        self.body += &format!("<h3 id=\"{name}\">{title}</h3>\n");
        self.table(table);
        self.body += &format!("<p class=\"note\">{caption} <a href=\"{name}.svg\">SVG</a></p>\n");
        self.figures.push(figure);
    }

    /// Writes `report.html` and a file for each figure.
    pub(super) fn write(self, directory: &Path) -> Result<(), LoadgenError> {
        for figure in &self.figures {
            let path = directory.join(format!("{}.svg", figure.name));
            write_file(&path, |file| file.write_all(figure.to_file().as_bytes()))?;
        }
        write_file(&directory.join("report.html"), |file| file.write_all(self.to_html().as_bytes()))
    }

    fn to_html(&self) -> String {
        let (title, body, charts) = (escape(&self.title), &self.body, page_rules());
        // The policy blocks fetches and scripts even if an external name were not escaped.
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>{RULES}{charts}</style>\n</head>\n<body>\n<main>\n{body}\
             <footer>tenbin {}</footer>\n</main>\n</body>\n</html>\n",
            env!("CARGO_PKG_VERSION")
        )
    }
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => " good",
            Self::Bad => " bad",
            Self::Aside => " aside",
        }
    }
}

/// Style rules of everything except figures. A table wider than the screen has a shadow at its cut edge.
const RULES: &str = "\
:root{--page:#fff;--text:#1b1f24;--muted:#57606a;--line:#d8dde3;--soft:#f5f7f9;--good:#04693e;--bad:#b3261e;--link:#0b5cad}\
@media screen and (prefers-color-scheme:dark){:root{--page:#15191e;--text:#e6e9ed;--muted:#a2abb5;--line:#343c45;--soft:#1c2127;--good:#5fd39a;--bad:#ff8a80;--link:#7cc0ff}}\
*{box-sizing:border-box}\
body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}\
main{max-width:800px;margin:0 auto;padding:24px 16px 48px}\
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}\
h2{font-size:1.2rem;margin:2.2em 0 .6em;padding-bottom:.25em;border-bottom:1px solid var(--line)}\
h3{font-size:1rem;margin:1.6em 0 .6em}figure h3{margin-top:0}\
p{margin:.6em 0;overflow-wrap:anywhere}.sub,.note,figcaption,footer{color:var(--muted)}\
a{color:var(--link)}ul{padding-left:1.2em}li{overflow-wrap:anywhere}\
.banner{padding:.6em .8em;border-left:4px solid var(--line);background:var(--soft);font-weight:600}\
.banner.good{border-color:var(--good)}.banner.bad{border-color:var(--bad)}\
.good{color:var(--good)}.bad{color:var(--bad)}td.bad{font-weight:600}.aside{color:var(--muted)}.banner.good,.banner.bad{color:var(--text)}\
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
td:first-child{overflow-wrap:break-word;min-width:6em;max-width:22em}\
@media screen and (max-width:640px){th,td{padding:.35em .45em}table{font-size:.8125rem}}\
figure{margin:1.8em 0;break-inside:avoid}figure svg{width:100%;height:auto}.note,figcaption{font-size:.875rem;margin-top:.4em}\
footer{margin-top:3em;font-size:.85rem}\
@media print{body{font-size:13px}main{max-width:none;padding:0}figure{margin:1em 0}figure svg{width:84%}h2{margin-top:1.4em}h2,h3{break-after:avoid}tr{break-inside:avoid}.wide-table{overflow:visible;background:none}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_outside_stay_text() {
        let mut page = Page::new("<script>alert(1)</script>", "a & b");
        page.table(&Table { head: vec!["<i>".into()], rows: vec![vec!["\"><img src=x>".into()]], text_columns: 1 });
        page.list(&["<li>".to_owned()]);
        let html = page.to_html();
        assert!(!html.contains("<script") && !html.contains("<img") && !html.contains("<i>"), "{html}");
        assert!(html.contains("&lt;script&gt;") && html.contains("a &amp; b"));
    }
}
