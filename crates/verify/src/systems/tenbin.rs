//! This project's broker.

use super::{Place, ReadyWhen, Startup, System};
use crate::line::Line;

/// This project's broker, with its defaults and the template's settings.
pub(super) struct Tenbin;

impl System for Tenbin {
    fn startup(&self, place: &Place<'_>) -> Result<Startup, String> {
        // Dotted keys stay valid ahead of all tables, in any order.
        let settings: String =
            place.instance.config.iter().map(|(key, value)| format!("{key} = {}\n", toml(value))).collect();
        let config = place.files.join("tenbin.toml");
        let address = format!("{}:{}", place.listen, place.port());
        let path = |path: &std::path::Path| path.display().to_string();
        let mut arguments =
            vec!["broker".to_owned(), "--listen".to_owned(), address, "--data".to_owned(), path(place.data)];
        // The broker refuses a configuration without any key.
        let files = if settings.is_empty() { Vec::new() } else { vec![(config, settings)] };
        arguments.extend(files.iter().flat_map(|(config, _)| ["--config".to_owned(), path(config)]));
        Ok(Startup {
            line: Line::new(path(place.tenbin), arguments),
            files,
            prepare: Vec::new(),
            ready: ReadyWhen::Mqtt(place.port()),
        })
    }
}

/// A value as TOML: numbers, booleans, arrays and quoted texts as they are, other texts in quotes.
fn toml(value: &str) -> String {
    let is_value =
        value.parse::<f64>().is_ok() || matches!(value, "true" | "false") || value.starts_with(['"', '\'', '[', '{']);
    if is_value { value.to_owned() } else { format!("{value:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_toml_values() {
        for (value, wanted) in [("5", "5"), ("true", "true"), ("fast", "\"fast\""), ("[1]", "[1]"), ("\"x\"", "\"x\"")]
        {
            assert_eq!(toml(value), wanted);
        }
    }
}
