//! Any program that the template starts by a command.

use super::{Line, Place, ReadyWhen, Startup, System, filled};
use crate::kind::Kind;
use crate::template::StartBy;

/// A command of the template.
pub(super) struct Program;

impl System for Program {
    fn startup(&self, place: &Place<'_>) -> Result<Startup, String> {
        let StartBy::Command(command) = &place.instance.start else {
            return Err("it has no command; add \"command:\"".to_owned());
        };
        let config = place.files.join("settings");
        let text: String = place.instance.config.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        Ok(Startup {
            files: vec![(config, text)],
            prepare: Vec::new(),
            line: Line::shell(filled(command, place)),
            ready: match place.instance.kind {
                Kind::Mqtt => ReadyWhen::Mqtt(place.port()),
                _ => ReadyWhen::Port(place.port()),
            },
        })
    }
}
