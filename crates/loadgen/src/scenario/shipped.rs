use std::path::Path;

use tenbin_simulator::{Scenario, suite};

use crate::LoadgenError;

/// The shipped scenario with this name, or the one in this file if the name ends in `.toml`.
///
/// # Errors
/// There is no such scenario, or the file cannot be read or parsed.
pub(super) fn find(name: &str) -> Result<Scenario, LoadgenError> {
    if name.ends_with(".toml") {
        return Scenario::read(Path::new(name)).map_err(LoadgenError::Scenario);
    }
    let shipped_name = PUBLISHED.iter().find(|(number, _)| *number == name).map_or(name, |(_, name)| name);
    let mut shipped = suite::shipped();
    let names: Vec<_> = shipped.iter().map(|scenario| scenario.name.clone()).collect();
    match names.iter().position(|shipped| shipped == shipped_name) {
        Some(index) => Ok(Scenario { name: name.to_owned(), ..shipped.swap_remove(index) }),
        None => {
            let text = format!("no scenario {name:?}: want 1, 2, {}, or a file that ends in .toml", names.join(", "));
            Err(LoadgenError::Arguments(text))
        }
    }
}

/// Numbers under which scenarios were published.
const PUBLISHED: [(&str, &str); 2] = [("1", "scenario_1"), ("2", "scenario_2_10.0ms")];
