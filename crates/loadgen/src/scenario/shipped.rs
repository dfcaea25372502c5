use std::path::Path;

use tenbin_simulator::Scenario;

use crate::LoadgenError;

/// The scenario of this name, or in this file if it ends in `.toml`.
///
/// # Errors
/// There is none of this name; the file cannot be read or is no scenario.
pub(super) fn find(name: &str) -> Result<Scenario, LoadgenError> {
    if name.ends_with(".toml") {
        return Scenario::read(Path::new(name)).map_err(LoadgenError::Scenario);
    }
    let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) else {
        let names: Vec<_> = SHIPPED.iter().map(|(shipped, _)| *shipped).collect();
        let text = format!("no scenario {name:?}: want {}, or a file that ends in .toml", names.join(", "));
        return Err(LoadgenError::Arguments(text));
    };
    Scenario::parse(name, text).map_err(LoadgenError::Scenario)
}

/// Those that have a name; the files are `simulate`'s too.
const SHIPPED: [(&str, &str); 6] = [
    ("1", include_str!("../../../../scenarios/scenario_1.toml")),
    ("2", include_str!("../../../../scenarios/scenario_2_10.0ms.toml")),
    ("step", include_str!("../../../../scenarios/step.toml")),
    ("pause", include_str!("../../../../scenarios/pause.toml")),
    ("churn", include_str!("../../../../scenarios/churn.toml")),
    ("burst", include_str!("../../../../scenarios/burst.toml")),
];
