//! JSON as tables of text.

use serde_json::Value;
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
        Value::String(value) => text(value.chars().flat_map(char::escape_debug).collect()),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            text(items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "))
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
        assert_eq!(rows(&items), "a        b.c  d\nx\\u{1b}  1.2  -\nlonger   2\n");
        assert_eq!(rows(&[]), "none\n");
    }
}
