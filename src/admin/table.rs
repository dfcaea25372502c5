//! JSON as tables of text.

use serde_json::Value;
use tenbin_kit::printable::printable;
use tenbin_kit::table::aligned as aligned_lines;

/// A table of objects, with the keys of the first one as columns. Objects within have a column for each key.
pub(super) fn rows(items: &[Value]) -> String {
    let Some(first) = items.first() else { return "none\n".to_owned() };
    let names: Vec<_> = flat("", first).into_iter().map(|(name, _)| name).collect();
    let row = |item: &Value| {
        let cells = flat("", item);
        names
            .iter()
            .map(|name| cells.iter().find(|(known, _)| known == name).map_or("", |(_, cell)| cell).to_owned())
            .collect()
    };
    aligned(std::iter::once(names.clone()).chain(items.iter().map(row)).collect())
}

/// A table of some columns, named by their paths in the objects, in lines of at most [`WIDTH`] characters. Long texts lose
/// their middle: names often differ in their ends.
pub(super) fn fitted(items: &[Value], columns: &[&str]) -> String {
    if items.is_empty() {
        return "none\n".to_owned();
    }
    let title = |column: &&str| column.rsplit('.').next().unwrap_or_default().trim_end_matches("_messages").to_owned();
    let row = |item: &Value| {
        let cell = |column: &&str| {
            let value = column.split('.').fold(item, |value, part| &value[part]);
            flat("", value).pop().map_or_else(String::new, |(_, text)| text)
        };
        columns.iter().map(cell).collect::<Vec<_>>()
    };
    let titles: Vec<_> = columns.iter().map(title).collect();
    let mut lines: Vec<_> = std::iter::once(titles).chain(items.iter().map(row)).collect();
    let widest = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let mut widths: Vec<_> = (0..columns.len()).map(widest).collect();
    while widths.iter().sum::<usize>() + 2 * (widths.len() - 1) > WIDTH {
        let Some(most) = widths.iter_mut().max() else { break };
        *most -= 1;
    }
    for (cell, width) in lines.iter_mut().flat_map(|line| line.iter_mut().zip(&widths)) {
        *cell = without_middle(cell, *width);
    }
    aligned(lines)
}

/// A text in `most` characters: its begin and, longer, its end.
fn without_middle(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let begin = most.saturating_sub(1) / 3;
    let end = most.saturating_sub(1) - begin;
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(count - end)).collect()
}

/// Longest line of a fitted table.
const WIDTH: usize = 100;

/// A line for each key.
pub(super) fn pairs<'a>(pairs: impl Iterator<Item = (&'a String, &'a Value)>) -> String {
    let lines = pairs.flat_map(|(name, value)| flat(name, value));
    aligned(lines.map(|(name, value)| vec![name, value]).collect())
}

/// Names and texts of a value; lists within are counted.
fn flat(name: &str, value: &Value) -> Vec<(String, String)> {
    let text = |text: String| vec![(name.to_owned(), text)];
    match value {
        Value::Null => text("-".to_owned()),
        Value::String(value) => text(printable(value).into_owned()),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            text(items.iter().filter_map(Value::as_str).map(printable).collect::<Vec<_>>().join(" "))
        }
        Value::Array(items) => text(items.len().to_string()),
        Value::Object(object) => {
            let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
            object.iter().flat_map(|(key, value)| flat(&below(key), value)).collect()
        }
        Value::Number(number) => text(
            number
                .as_f64()
                .filter(|_| number.is_f64())
                .map_or_else(|| number.to_string(), |float| format!("{float:.1}")),
        ),
        Value::Bool(value) => text(value.to_string()),
    }
}

/// Lines with columns of equal width.
pub(super) fn aligned(lines: Vec<Vec<String>>) -> String {
    aligned_lines(&lines, usize::MAX, [0; 2]).into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_have_aligned_columns_and_escape_control_characters() {
        let items =
            [json!({ "a": "x\u{1b}", "b": { "c": 1.25 }, "d": null }), json!({ "a": "longer", "b": { "c": 2 } })];
        assert_eq!(rows(&items), "a        b.c  d\nx\\u001b  1.2  -\nlonger   2\n");
        assert_eq!(rows(&[]), "none\n");
    }

    #[test]
    fn fitted_tables_keep_the_ends_of_names() {
        let long =
            |end: &str| json!({ "client": format!("{}{end}", "worker-7d9f6c5b8d-".repeat(8)), "at": { "peer": "p" } });
        let text = fitted(&[long("abcde"), long("fghij")], &["client", "at.peer"]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(lines[1].contains("abcde  p") && lines[2].contains("fghij  p"), "{text}");
        assert!(lines[0].starts_with("client ") && lines[0].ends_with("  peer"), "{text}");
        assert_eq!(fitted(&[json!({ "client": "short" })], &["client", "at.peer"]), "client  peer\nshort   -\n");
    }
}
